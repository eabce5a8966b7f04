"""The tokenizer process: gateway → here → scheduler, and refusals back to the gateway."""

from __future__ import annotations

import time
from pathlib import Path

from engine.gateway_link import GatewayLink
from engine.messages import (
    Abort,
    DataMessage,
    Directory,
    Enqueue,
    IdsToText,
    Refused,
    Submit,
    TextToIds,
)
from engine.model_shape import ModelShape
from engine.process import CannotStartError, ProcessContext, SyncStage
from engine.tokenizer.chat_template import ChatTemplate, ChatTemplateError, load_chat_template
from engine.tokenizer.limits import Limits, RequestRefusedError
from engine.tokenizer.request_tokenizer import RequestTokenizer
from engine.transport import Outbox
from engine.vocabulary import load_tokenizer
from telemetry.events import Stage, Tokenized
from telemetry.gauges import Gauge


class TokenizerStage(SyncStage):
    """Takes messages in order and passes each on as soon as it is done, so that none waits for a longer one.

    Aborts go the same way and are passed on too: first in, first out.
    """

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        self._gateway = GatewayLink(self)
        self._scheduler = Outbox(context.zmq, self.outbox_address(Stage.SCHEDULER))

    def start(self) -> dict[str, str]:
        """Load vocabulary and template."""
        model, config = self.context.run.model, self.context.config
        folder = Path(model.path)
        limits = Limits.of(_load_shape(folder), config)
        template = _load_template(folder, config.chat_template)
        self._requests = RequestTokenizer(load_tokenizer(folder), template, limits, self.gauges.beat)
        return {"tokenizer_sha256": model.tokenizer_sha256, "max_model_len": str(limits.max_model_len)}

    def on_directory(self, directory: Directory) -> None:
        """Follow the gateway."""
        self._gateway.on_directory(directory)

    def on_messages(self, messages: list[DataMessage]) -> None:
        """Handle what has arrived, except what a dead gateway asked for."""
        received_ns = time.monotonic_ns()
        for message in messages:
            match message:
                case Submit() | TextToIds() | IdsToText() | Abort() if self._gateway.is_stale(message.gateway):
                    continue
                case Submit():
                    self._on_submit(message, received_ns)
                case Abort():
                    self._to_scheduler(message)
                case TextToIds() | IdsToText():
                    self._on_question(message)
                case _:
                    self.log.warning("unexpected message", message=type(message).__name__)

    def _on_submit(self, submit: Submit, received_ns: int) -> None:
        start_ns = time.monotonic_ns()
        prompts: list[list[int]] = []
        error = ""
        try:
            enqueue = self._requests.enqueue(submit)
        except RequestRefusedError as e:
            end_ns, error = time.monotonic_ns(), str(e)
            self._refuse(submit, e)
        else:
            end_ns, prompts = time.monotonic_ns(), enqueue.prompts  # before anybody can begin with them
            self._to_scheduler(enqueue)
        self.journal.append(
            Tokenized(submit.request_id, received_ns, start_ns, end_ns, prompts, bool(submit.chat), error)
        )

    def _on_question(self, question: TextToIds | IdsToText) -> None:
        try:
            if isinstance(question, TextToIds):
                self._gateway.send([self._requests.ids_reply(question)])
            else:
                self._gateway.send([self._requests.text_reply(question)])
        except RequestRefusedError as e:
            self._refuse(question, e)

    def _to_scheduler(self, message: Enqueue | Abort) -> None:
        self._scheduler.send(message)
        self.gauges.add(Gauge.SENT_SCHEDULER)

    def _refuse(self, request: Submit | TextToIds | IdsToText, e: RequestRefusedError) -> None:
        refused = Refused(
            request_id=request.request_id,
            gateway=request.gateway,
            status=400,
            error_type="invalid_request_error",
            message=str(e),
            param=e.param,
            code=e.code,
        )
        self._gateway.send([refused])


def _load_shape(folder: Path) -> ModelShape:
    try:
        return ModelShape.from_folder(folder)
    except (OSError, KeyError, ValueError) as e:
        raise CannotStartError(f"cannot read the model's configuration in {folder}: {e}") from e


def _load_template(folder: Path, file: str) -> ChatTemplate | None:
    try:
        return load_chat_template(folder, file)
    except ChatTemplateError as e:
        raise CannotStartError(f"cannot use the chat template: {e}") from e
