"""The process around the scheduler, in a thread, with everybody else played by the test."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from engine.config import Config
from engine.messages import (
    Abort,
    CacheReset,
    ControlMessage,
    DataMessage,
    Directory,
    Hello,
    Ready,
    Refused,
    ResetCache,
    SequenceEnd,
    SequenceStart,
    StepPlan,
    StepResult,
    StepTokens,
    Stop,
    StopHit,
)
from engine.process import CannotStartError, ProcessContext
from engine.run_folder import ModelFiles, RunFolder, RunInfo, control_address, inbox_address
from engine.scheduler.stage import SchedulerStage
from engine.transport import Inbox, Outbox, decode_control, encode
from telemetry.events import SequenceEnded, Stage
from telemetry.gauges import Gauge, GaugeReader
from telemetry.journal import JournalReader
from tests.scheduler.simulation import make_enqueue

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 100,
    "eos_token_id": 7,
}
WAIT_MS = 5000


def make_run(folder: Path, sockets: str) -> RunFolder:
    (folder / "model").mkdir()
    config = Config(data_dir=str(folder), block_size=4, kv_blocks=8, max_num_seqs=2)
    run = RunFolder(folder / "run")
    run.create(RunInfo("run", "", "host", config, ModelFiles("m", str(folder / "model"), "", ""), sockets, 0))
    return run


class Peers:
    """Supervisor, tokenizer, runner and detokenizer of one scheduler."""

    def __init__(self, run: RunFolder, sockets: str) -> None:
        self._context = zmq.Context()
        self._control = self._context.socket(zmq.ROUTER)
        self._control.bind(control_address(sockets))
        self.runner, self.detokenizer = (
            Inbox(self._context, inbox_address(sockets, stage, "r0", 3)) for stage in (Stage.RUNNER, Stage.DETOKENIZER)
        )
        context = ProcessContext(run, Stage.SCHEDULER, "r0", 3)
        self.gauges = GaugeReader(context.gauges.path)
        self.stage = SchedulerStage(context)
        self._thread = threading.Thread(target=self.stage.run)
        self._thread.start()
        self._inbox = Outbox(self._context, context.inbox_address)
        self._peer, hello = self.hear()
        assert isinstance(hello, Hello)
        assert self.hear()[1] == Ready({})
        self.journal = JournalReader(run.journals / "r0.3.scheduler.journal")

    def hear(self) -> tuple[bytes, ControlMessage]:
        assert self._control.poll(WAIT_MS)
        peer, frame = self._control.recv_multipart()
        return peer, decode_control(frame)

    def tell(self, message: ControlMessage) -> None:
        self._control.send_multipart([self._peer, encode(message)])

    def send(self, *messages: DataMessage) -> None:
        self._inbox.send_many(messages)

    def plan(self) -> StepPlan:
        assert self.runner.socket.poll(WAIT_MS)
        (plan,) = self.runner.take()
        assert isinstance(plan, StepPlan)
        return plan

    def answer(self, plan: StepPlan, token: int = 1) -> None:
        self.send(StepResult(plan.step_id, [token if s else -1 for s in plan.samples], 1, 2, 3, 0))

    def news(self) -> list[DataMessage]:
        assert self.detokenizer.socket.poll(WAIT_MS)
        return self.detokenizer.take()

    def await_gauges(self, condition: Callable[[Callable[[Gauge], int]], bool]) -> None:
        deadline = time.monotonic() + WAIT_MS / 1000
        while not condition(self.gauges.get):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def close(self) -> None:
        self.tell(Stop())
        self._thread.join(WAIT_MS / 1000)
        assert not self._thread.is_alive()
        self.stage.context.close()
        self.journal.close()
        self.gauges.close()
        self._context.destroy(linger=0)


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    with tempfile.TemporaryDirectory(prefix="v") as sockets:
        run = make_run(tmp_path, sockets)
        (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
        peers = Peers(run, sockets)
        yield peers
        peers.close()


def test_a_request_travels_through_the_process(peers: Peers) -> None:
    peers.send(make_enqueue([1, 2, 3], max_tokens=2))
    first = peers.plan()
    assert (first.token_ids, first.num_tokens, first.samples) == ([1, 2, 3], [3], [True])
    assert first.predicted_ns > 0
    (start,) = peers.news()
    assert isinstance(start, SequenceStart)
    peers.answer(first, 5)
    (tokens,) = peers.news()
    assert tokens == StepTokens(1, 3, [1], [5], [""])
    second = peers.plan()
    assert (second.starts, second.token_ids, second.new_blocks, second.starting) == ([3], [5], [[]], [])
    peers.answer(second, 7)
    assert peers.news() == [StepTokens(2, 3, [1], [7], ["length"])]
    peers.await_gauges(lambda get: get(Gauge.SENT_RUNNER) == 2 and get(Gauge.SENT_DETOKENIZER) == 3)
    assert peers.gauges.get(Gauge.RUNNING) == peers.gauges.get(Gauge.PENDING_SINCE_NS) == 0
    assert peers.gauges.get(Gauge.LAST_STEP_ID) == 2
    assert peers.gauges.get(Gauge.BLOCKS_CACHED) + peers.gauges.get(Gauge.BLOCKS_FREE) == 8


def test_gauges_return_to_idle_when_everything_is_aborted(peers: Peers) -> None:
    """MT-01."""
    peers.send(make_enqueue(n=5, max_tokens=50), make_enqueue(request_id="other", max_tokens=50))
    plan = peers.plan()
    peers.await_gauges(lambda get: get(Gauge.RUNNING) == 2 and get(Gauge.WAITING_MAX_RUNNING) == 4)
    assert peers.gauges.get(Gauge.PENDING_SINCE_NS) > 0
    peers.send(Abort("q", 1), Abort("other", 1))
    peers.await_gauges(lambda get: get(Gauge.RUNNING) == 0 == get(Gauge.WAITING_MAX_RUNNING))
    assert peers.gauges.get(Gauge.BLOCKS_ACTIVE) == 2
    peers.answer(plan)
    peers.await_gauges(lambda get: get(Gauge.BLOCKS_ACTIVE) == 0 == get(Gauge.PENDING_SINCE_NS))
    assert len([m for m in peers.news() if isinstance(m, SequenceEnd)]) == 6


def test_refusals_stop_hits_and_a_lost_gateway(peers: Peers) -> None:
    peers.send(make_enqueue([1] * 50, request_id="big"))
    (refused,) = peers.news()
    assert isinstance(refused, Refused)
    peers.send(make_enqueue(request_id="a", max_tokens=9), make_enqueue(request_id="b", max_tokens=9))
    plan = peers.plan()
    peers.await_gauges(lambda get: get(Gauge.RUNNING) == 2)
    peers.send(StopHit(1))
    peers.await_gauges(lambda get: get(Gauge.RUNNING) == 1)
    peers.tell(Directory(2, "", []))
    peers.await_gauges(lambda get: get(Gauge.RUNNING) == 0)
    peers.answer(plan)
    peers.await_gauges(lambda get: get(Gauge.PENDING_SINCE_NS) == 0)
    ends = {r.seq_id: r.finish_reason for r in peers.journal.read() if isinstance(r, SequenceEnded)}
    assert ends == {1: "stop", 2: "abort"}


def test_a_reset_of_the_cache_is_answered_with_what_it_freed(peers: Peers) -> None:
    peers.send(make_enqueue(list(range(20)), max_tokens=1))
    peers.answer(peers.plan())
    peers.await_gauges(lambda get: get(Gauge.BLOCKS_CACHED) > 0)
    cached = peers.gauges.get(Gauge.BLOCKS_CACHED)
    peers.tell(ResetCache(7))
    assert peers.hear()[1] == CacheReset(7, "r0", cached)
    peers.await_gauges(lambda get: get(Gauge.BLOCKS_CACHED) == 0)


def test_a_model_that_cannot_be_read_is_a_clear_failure(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="v") as sockets:
        context = ProcessContext(make_run(tmp_path, sockets), Stage.SCHEDULER, "r0", 1)
        with pytest.raises(CannotStartError, match="model"):
            SchedulerStage(context)
        context.zmq.destroy(linger=0)
