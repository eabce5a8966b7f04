"""A real gateway on an ephemeral port, with a fake supervisor and fake replicas at the other end of its sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import zmq
import zmq.asyncio

from engine.config import Config
from engine.gateway.server import Gateway
from engine.messages import (
    ControlMessage,
    DataMessage,
    Directory,
    Increment,
    Increments,
    ReplicaEntry,
    Submit,
    TextLogprob,
    TokenTextLogprobs,
)
from engine.process import ProcessContext
from engine.run_folder import ModelFiles, RunFolder, RunInfo, control_address, inbox_address
from engine.transport import Outbox, decode_control, decode_data, encode
from telemetry.events import REPLICA_STAGES, FinishReason, Record, ReplicaState, Stage
from telemetry.journal import JournalReader

MODEL = "tiny"
CONTEXT = 64
LONGEST_TOKEN = 5
GATEWAY = 7

R = TypeVar("R", bound=Record)
M = TypeVar("M")


def make_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "num_hidden_layers": 1,
                "hidden_size": 8,
                "intermediate_size": 16,
                "num_attention_heads": 2,
                "vocab_size": 100,
                "max_position_embeddings": CONTEXT,
                "eos_token_id": 2,
            }
        )
    )
    vocabulary = {"a": 0, "bc": 1, "hello": 2}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    return folder


def make_run(tmp_path: Path, socket_dir: str, **settings: Any) -> RunFolder:
    config = Config(data_dir=str(tmp_path / "data"), **settings)
    model = ModelFiles(MODEL, str(make_model(tmp_path / "model")), "w" * 64, "t" * 64)
    folder = RunFolder(tmp_path / "run")
    folder.create(RunInfo("run-1", "abc", "host", config, model, socket_dir, 1))
    return folder


def increment(request_id: str, index: int = 0, text: str = "", ids: tuple[int, ...] = (), **fields: Any) -> Increment:
    fields.setdefault("gateway", GATEWAY)
    return Increment(
        request_id=request_id, index=index, text=text, token_ids=list(ids), sampled_ns=time.monotonic_ns(), **fields
    )


class FakeReplica:
    """Stands for tokenizer, scheduler, runner and detokenizer: takes messages, and sends what a test says."""

    def __init__(self, run: RunInfo, name: str = "r0", incarnation: int = 1) -> None:
        self.name, self.incarnation = name, incarnation
        self.inboxes = {s: inbox_address(run.socket_dir, s, name, incarnation) for s in REPLICA_STAGES}
        self.script: Callable[[Submit], None] | None = None
        self.answers: Callable[[DataMessage], DataMessage | None] = lambda message: None
        self.seen: list[DataMessage] = []
        self._context = zmq.asyncio.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.bind(self.inboxes[Stage.TOKENIZER])
        self._outbox = Outbox(
            zmq.Context.shadow(self._context), inbox_address(run.socket_dir, Stage.GATEWAY, "", GATEWAY)
        )
        self._news = asyncio.Condition()
        self._task = asyncio.create_task(self._serve())

    def entry(self, state: ReplicaState = ReplicaState.READY) -> ReplicaEntry:
        return ReplicaEntry(self.name, self.incarnation, state, "", time.monotonic_ns(), 0, self.inboxes)

    async def _serve(self) -> None:
        while True:
            for frame in await self._inbox.recv_multipart():
                message = decode_data(frame)
                async with self._news:
                    self.seen.append(message)
                    self._news.notify_all()
                if isinstance(message, Submit) and self.script:
                    self.script(message)
                elif (answer := self.answers(message)) is not None:
                    self.send_message(answer)

    async def saw(self, kind: type[M], count: int = 1) -> M:
        """Wait for the count-th message of a kind."""

        def found() -> list[M]:
            return [m for m in self.seen if isinstance(m, kind)]

        async with asyncio.timeout(5), self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]

    def send_message(self, message: DataMessage) -> None:
        self._outbox.send(message)

    def send(self, *items: Increment) -> None:
        self.send_message(Increments(self.name, self.incarnation, list(items)))

    def close(self) -> None:
        self._task.cancel()
        self._outbox.flush_and_close(linger_ms=0)
        self._context.destroy(linger=0)


def prompt_lengths(submit: Submit) -> list[list[int]]:
    """The fake tokenization: one id per character of a text."""
    if submit.chat:
        return [[1] * sum(len(turn.content or "") for turn in submit.chat)]
    return [list(ids) for ids in submit.token_ids] or [[1] * len(text) for text in submit.texts]


def answer_at_once(replica: FakeReplica) -> Callable[[Submit], None]:
    """A script that samples " 0", " 1", … for each sequence up to max_tokens (default 3)."""

    def script(submit: Submit) -> None:
        prompts = prompt_lengths(submit)
        limit = submit.params.max_tokens or 3
        for step in range(limit):
            replica.send(
                *(
                    increment(
                        submit.request_id,
                        prompt * submit.n + choice,
                        f" {step}",
                        (step + 10,),
                        gateway=submit.gateway,
                        finish_reason=FinishReason.LENGTH if step == limit - 1 else None,
                        prompt_token_ids=ids if step == 0 else None,
                    )
                    for prompt, ids in enumerate(prompts)
                    for choice in range(submit.n)
                )
            )

    return script


class Rig:
    """The gateway under test and everything around it."""

    def __init__(self, tmp_path: Path, socket_dir: str, **settings: Any) -> None:
        self.folder = make_run(tmp_path, socket_dir, **settings)
        self.run = self.folder.info()
        self._context = zmq.asyncio.Context()
        self._supervisor = self._context.socket(zmq.ROUTER)
        self._supervisor.bind(control_address(socket_dir))
        self.context = ProcessContext(self.folder, Stage.GATEWAY, "", GATEWAY)
        self.gateway = Gateway(self.context)
        self.service = self.gateway._service
        self.engine = self.service.engine
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.AsyncClient(base_url=self.url, timeout=10)
        self.replicas: list[FakeReplica] = []
        self._peer = b""
        self.task = asyncio.create_task(self.gateway.run(listener))
        self._reader: JournalReader | None = None
        self._records: list[Record] = []

    async def hear(self, kind: type[M]) -> M:
        """Wait for a control message of a kind from the gateway."""
        async with asyncio.timeout(5):
            while True:
                self._peer, frame = await self._supervisor.recv_multipart()
                message = decode_control(frame)
                if isinstance(message, kind):
                    return message

    async def tell(self, message: ControlMessage) -> None:
        await self._supervisor.send_multipart([self._peer, encode(message)])

    def replica(self, name: str = "r0", incarnation: int = 1) -> FakeReplica:
        replica = FakeReplica(self.run, name, incarnation)
        replica.script = answer_at_once(replica)
        self.replicas.append(replica)
        return replica

    async def direct(self, *entries: ReplicaEntry) -> None:
        """Send a directory, and wait until the gateway has it."""
        directory = Directory(GATEWAY, self.context.inbox_address, list(entries))
        await self.tell(directory)
        await until(lambda: self.engine.directory == directory)

    def records(self, kind: type[R]) -> list[R]:
        if self._reader is None:
            self._reader = JournalReader(next(self.folder.journals.glob("gateway.*")))
        self._records.extend(self._reader.read())
        return [r for r in self._records if isinstance(r, kind)]

    async def record(self, kind: type[R], count: int = 1) -> R:
        """Wait for the count-th record of a kind."""
        await until(lambda: len(self.records(kind)) >= count)
        return self.records(kind)[count - 1]

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", **body})

    async def chat(self, content: Any = "Hi", **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return await self.client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, **body})

    async def close(self) -> None:
        await self.client.aclose()
        self.gateway._stop()
        await asyncio.wait_for(self.task, 8)
        self.context.close()
        for replica in self.replicas:
            replica.close()
        self._context.destroy(linger=0)


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Wait for a condition that nothing announces."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def events(text: str) -> list[Any]:
    """The events of a stream: decoded, "DONE" for the last."""
    payloads = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return ["DONE" if p == "[DONE]" else json.loads(p) for p in payloads]


def said(token_id: int, text: str, logprob: float, rank: int = 1, data: bytes | None = None) -> TextLogprob:
    """A token in words."""
    return TextLogprob(token_id, text, text.encode() if data is None else data, logprob, rank)


def likely(token: TextLogprob, count: int | None) -> list[TokenTextLogprobs]:
    """The log probabilities of a token as the engine gives them: `count` alternatives, None for nothing at all."""
    others = [said(900 + i, f" alt{i}", -3.0 - i, i + 2) for i in range(count or 0)]
    return [] if count is None else [TokenTextLogprobs(token, [token, *others][:count])]


def answer_with_logprobs(replica: FakeReplica) -> Callable[[Submit], None]:
    """A script like `answer_at_once` that gives prompt and answer their texts and log probabilities.

    The tokens of choice k have the log probability -(k + 1) % 3 - step / 10.
    """

    def introduction(submit: Submit, prompt: int) -> dict[str, Any]:
        text = submit.texts[prompt] if submit.texts else "ab"
        count = submit.params.prompt_logprobs
        first = [TokenTextLogprobs(said(1, text[:1], 0.0, 0), [])] if count is not None else []
        rest = [item for c in text[1:] for item in likely(said(ord(c), c, -0.5), count)]
        return {
            "prompt_token_ids": [1, *map(ord, text[1:])],
            "prompt_text": text if submit.params.echo else "",
            "prompt_logprobs": first + rest,
        }

    def script(submit: Submit) -> None:
        limit = submit.params.max_tokens or 3
        for index in range(submit.n * max(len(submit.texts), 1)):
            choice = index % submit.n
            for step in range(limit):
                token = said(step + 10, f" {step}", -((choice + 1) % 3) - step / 10)
                replica.send(
                    increment(
                        submit.request_id,
                        index,
                        token.text,
                        (token.token_id,),
                        gateway=submit.gateway,
                        logprobs=likely(token, submit.params.logprobs),
                        finish_reason=FinishReason.LENGTH if step == limit - 1 else None,
                        **(introduction(submit, index // submit.n) if step == 0 else {}),
                    )
                )

    return script
