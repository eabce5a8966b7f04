"""What the host costs per step, and what overlapped planning hides of it.

``python -m tests.load.step_loop [--running 1,16,256] [--steps 300]`` starts the real scheduler and the real runner
process, with a simulated device that sleeps as long as a real one would compute, and plays the other stages. Both
loops are measured in turn; every figure is the median over the steps of a full batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from rich.console import Console
from rich.table import Table

from engine.config import Config
from engine.messages import Enqueue, Hello, Ready, SamplingParams, SequenceSpec, Stop
from engine.run_folder import ModelFiles, RunFolder, RunInfo, control_address, inbox_address
from engine.transport import Inbox, Outbox, decode_control, encode
from telemetry.events import Stage, StepKind, StepRecord
from telemetry.gauges import Gauge, GaugeReader
from telemetry.journal import JournalReader

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "vocab_size": 50_000,
    "max_position_embeddings": 8192,
}
PROMPT_TOKENS = 32
PREFILL_TOKENS = 2048  # per step, beside a full batch of decodes
START_MS = 30_000


class Sample(NamedTuple):
    """Medians of one run, in microseconds per step."""

    running: int
    overlap: str
    interval: float  # from one step's start on the device to the next one's
    device: float
    idle: float  # the device waited for the host
    host: float  # the scheduler process was busy
    plan: float  # of this, planning


class StepLoop:
    """Scheduler and runner processes; the test is supervisor, tokenizer and detokenizer."""

    def __init__(self, root: Path, config: Config) -> None:
        sockets = str(root / "s")
        Path(sockets).mkdir()
        model = root / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL))
        self.folder = RunFolder(root / "run")
        files = ModelFiles("none", str(model), "", "")
        self.folder.create(RunInfo("run", "", "host", config, files, sockets, os.getpid()))
        self.zmq: zmq.Context[Any] = zmq.Context()
        self._control = self.zmq.socket(zmq.ROUTER)
        self._control.bind(control_address(sockets))
        self.detokenizer = Inbox(self.zmq, inbox_address(sockets, Stage.DETOKENIZER, "r0", 1))
        self.scheduler = Outbox(self.zmq, inbox_address(sockets, Stage.SCHEDULER, "r0", 1))
        self._peers: dict[Stage, bytes] = {}
        self._children = [self._start(stage) for stage in (Stage.SCHEDULER, Stage.RUNNER)]
        self._await_ready()
        self.gauges = GaugeReader(self.folder.gauges / "r0.1.scheduler.gauges")
        self._journal = JournalReader(self.folder.journals / "r0.1.scheduler.journal")

    def _start(self, stage: Stage) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"engine.{stage}", "--run", str(self.folder.path), "--stage", stage.value]
        return subprocess.Popen([*command, "--replica", "r0", "--incarnation", "1"])

    def _await_ready(self) -> None:
        ready = 0
        while ready < len(self._children):
            assert self._control.poll(START_MS), "a stage does not start"
            identity, frame = self._control.recv_multipart()
            message = decode_control(frame)
            if isinstance(message, Hello):
                self._peers[message.stage] = identity
            ready += isinstance(message, Ready)

    def records(self) -> list[StepRecord]:
        """The step records since the last call."""
        return [record for record in self._journal.read() if isinstance(record, StepRecord)]

    def close(self) -> None:
        """Stop both processes."""
        for peer in self._peers.values():
            self._control.send_multipart([peer, encode(Stop())])
        for child in self._children:
            child.wait(timeout=30)
        self.gauges.close()
        self._journal.close()
        self.zmq.destroy(linger=0)


@contextmanager
def step_loop(config: Config) -> Iterator[StepLoop]:
    """A running loop in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="v") as root:
        loop = StepLoop(Path(root), config)
        try:
            yield loop
        finally:
            loop.close()


def make_config(running: int, overlap: str, step: str, data_dir: str) -> Config:
    """A batch of `running` sequences fits, prompts and all."""
    return Config(
        device="simulated",
        simulated_step=step,
        overlap=overlap,
        max_num_seqs=running,
        max_num_batched_tokens=running + PREFILL_TOKENS,
        kv_blocks=running * 64 + 64,
        data_dir=data_dir,
    )


def make_request(number: int, output_tokens: int) -> Enqueue:
    """One sequence with a prompt of its own."""
    prompt = [(number * 7919 + i) % MODEL["vocab_size"] for i in range(PROMPT_TOKENS)]
    params = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
    return Enqueue(f"q{number}", 1, [prompt], [SequenceSpec(0, 0, number)], params)


def measure(running: int, overlap: str, steps: int, step: str) -> Sample:
    """Fill the batch, let it decode for `steps` steps, and look at the records."""
    with tempfile.TemporaryDirectory() as data, step_loop(make_config(running, overlap, step, data)) as loop:
        fill_steps = running * PROMPT_TOKENS // PREFILL_TOKENS + 2
        loop.scheduler.send_many(make_request(i, steps + fill_steps) for i in range(running))
        busy_from = (0, 0)
        full: list[StepRecord] = []
        while True:
            assert loop.detokenizer.socket.poll(START_MS), "no step for a long time"
            loop.detokenizer.take()
            full += [r for r in loop.records() if len(r.seq_ids) == running and r.kind is StepKind.DECODE]
            now = (loop.gauges.get(Gauge.BUSY_NS), loop.gauges.get(Gauge.LAST_STEP_ID))
            if not busy_from[1] and now[1] > fill_steps:
                busy_from = now
            if now[1] >= steps + fill_steps // 2:
                break
        host = (now[0] - busy_from[0]) / (now[1] - busy_from[1])
    return summarise(running, overlap, full, host)


def summarise(running: int, overlap: str, records: list[StepRecord], host_ns: float) -> Sample:
    """Medians over the steps of a full batch."""
    starts = [record.exec_start_ns for record in records]
    return Sample(
        running,
        overlap,
        interval=statistics.median(b - a for a, b in pairwise(starts)) / 1e3,
        device=statistics.median(record.sampled_ns - record.exec_start_ns for record in records) / 1e3,
        idle=statistics.median(record.idle_ns for record in records) / 1e3,
        host=host_ns / 1e3,
        plan=statistics.median(record.submitted_ns - record.planned_ns for record in records) / 1e3,
    )


def table(samples: list[Sample]) -> Table:
    """For people."""
    table = Table(title="One decode step, microseconds (medians)")
    for heading in ("running", "overlap", "interval", "device", "idle", "host", "plan", "host per sequence"):
        table.add_column(heading, justify="right")
    for s in samples:
        numbers = (s.interval, s.device, s.idle, s.host, s.plan)
        table.add_row(str(s.running), s.overlap, *(f"{n:,.0f}" for n in numbers), f"{s.host / s.running:.2f}")
    return table


def main() -> None:
    """Measure both loops at each batch size, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", default="1,4,16,64,256,1024,4096")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--simulated-step", default="5000,0,2")
    args = parser.parse_args()
    samples = []
    for running in map(int, args.running.split(",")):
        for overlap in ("off", "on"):
            samples.append(measure(running, overlap, args.steps, args.simulated_step))
            print(f"{running} running, overlap {overlap}: measured", file=sys.stderr)
    Console().print(table(samples))


if __name__ == "__main__":
    main()
