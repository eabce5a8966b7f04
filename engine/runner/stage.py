"""The runner process: takes step plans from the scheduler, answers with results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from engine.config import Config
from engine.messages import DataMessage, StepPlan, StepResult
from engine.process import ProcessContext, SyncStage
from engine.runner.heartbeat import Heartbeat
from engine.transport import Outbox
from telemetry.events import Compute, Stage, StepStarted
from telemetry.gauges import Gauge


class StepExecutor(Protocol):
    """Something that computes steps."""

    def facts(self) -> dict[str, str]:
        """Pool size, device, number format."""

    def compute(self) -> Compute | None:
        """What utilisation is made from; None where nothing is computed."""

    def warm_up(self) -> None:
        """Make the first step as quick as the next ones."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; plans come in the scheduler's order."""


class RunnerStage(SyncStage):
    """Executes plans one after another, in the order in which they come."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        self._scheduler = Outbox(context.zmq, self.outbox_address(Stage.SCHEDULER))
        self._heartbeat = Heartbeat(context.gauges)

    def start(self) -> dict[str, str]:
        """Load the model, reserve the KV pool and warm up."""
        started = time.monotonic()
        with self._heartbeat:
            self._runner = _executor(Path(self.context.run.model.path), self.context.config)
            self._runner.warm_up()
            self.compute = self._runner.compute()
        self.log.info("model loaded", seconds=round(time.monotonic() - started, 3), **self._runner.facts())
        return self._runner.facts()

    def on_messages(self, messages: list[DataMessage]) -> None:
        """Execute every plan."""
        for message in messages:
            match message:
                case StepPlan():
                    self._step(message)
                case _:
                    self.log.warning("unexpected message", message=type(message).__name__)

    def finish(self) -> None:
        """Let the scheduler take the last result."""
        self._heartbeat.close()
        self._scheduler.flush_and_close()

    def _step(self, plan: StepPlan) -> None:
        now = time.monotonic_ns()
        self.gauges.set(Gauge.STEP_PREDICTED_NS, plan.predicted_ns)
        self.gauges.set(Gauge.STEP_STARTED_NS, now)
        self.journal.append(StepStarted(plan.step_id, now, len(plan.slots), sum(plan.num_tokens)))
        with self._heartbeat:
            result = self._runner.execute(plan)
        self._scheduler.send(result)
        self.gauges.set(Gauge.SENT_SCHEDULER, self._scheduler.sent)
        self.gauges.set(Gauge.STEP_STARTED_NS, 0)


def _executor(folder: Path, config: Config) -> StepExecutor:
    """What `--device` asks for. Torch is loaded only for a real one."""
    if config.device == "simulated":
        from engine.runner.simulated import SimulatedRunner

        return SimulatedRunner(folder, config)
    from engine.runner.model_runner import ModelRunner

    return ModelRunner(folder, config)
