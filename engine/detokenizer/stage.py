"""The detokenizer process: scheduler → here → gateway, and stop strings that were hit back to the scheduler."""

from __future__ import annotations

from pathlib import Path

from engine.detokenizer.pieces import Pieces
from engine.detokenizer.sequences import Sequences
from engine.gateway_link import GatewayLink
from engine.messages import (
    DataMessage,
    Directory,
    Increment,
    Increments,
    PromptLogprobs,
    Refused,
    SequenceEnd,
    SequenceStart,
    StepTokens,
    StopHit,
)
from engine.process import ProcessContext, SyncStage
from engine.transport import Outbox
from engine.vocabulary import load_tokenizer
from telemetry.events import SequenceDetokenized, Stage
from telemetry.gauges import Gauge


class DetokenizerStage(SyncStage):
    """All that one message brings goes out before the next one is looked at: increments first, then records."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        self._gateway = GatewayLink(self)
        self._scheduler = Outbox(context.zmq, self.outbox_address(Stage.SCHEDULER))

    def start(self) -> dict[str, str]:
        """Load the vocabulary."""
        tokenizer = load_tokenizer(Path(self.context.run.model.path))
        self._sequences = Sequences(Pieces(tokenizer))
        return {}

    def on_directory(self, directory: Directory) -> None:
        """Follow the gateway, and forget what a dead one asked for."""
        self._gateway.on_directory(directory)
        self._sequences.forget(self._gateway.is_stale)

    def on_messages(self, messages: list[DataMessage]) -> None:
        """Handle what has arrived, except what a dead gateway asked for."""
        for message in messages:
            match message:
                case SequenceStart() | SequenceEnd() | Refused() if self._gateway.is_stale(message.gateway):
                    continue
                case StepTokens():
                    self._on_step(message)
                case SequenceStart():
                    self._sequences.start(message)
                case PromptLogprobs():
                    self._sequences.note_prompt(message)
                case SequenceEnd():
                    increment, record = self._sequences.end(message)
                    self._send([increment], [] if record is None else [record])
                case Refused():
                    self._gateway.send([message])
                case _:
                    self.log.warning("unexpected message", message=type(message).__name__)

    def _on_step(self, step: StepTokens) -> None:
        text = self._sequences.step(step)
        self._scheduler.send_many([StopHit(seq_id) for seq_id in text.stop_hits])
        self.gauges.add(Gauge.SENT_SCHEDULER, len(text.stop_hits))
        self._send(text.increments, text.ended)

    def _send(self, increments: list[Increment], records: list[SequenceDetokenized]) -> None:
        if increments:
            self._gateway.send([Increments(self.context.replica, self.context.incarnation, increments)])
        for record in records:
            self.journal.append(record)
