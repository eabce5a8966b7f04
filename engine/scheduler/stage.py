"""The scheduler's process: messages in, plans and tokens out, gauges up to date."""

from __future__ import annotations

from pathlib import Path

from engine.messages import (
    Abort,
    CacheReset,
    ControlMessage,
    DataMessage,
    Directory,
    Enqueue,
    ResetCache,
    StepResult,
    StopHit,
)
from engine.model_shape import ModelShape
from engine.process import CannotStartError, ProcessContext, SyncStage
from engine.scheduler.limits import Limits
from engine.scheduler.scheduler import Scheduler
from engine.transport import Outbox
from telemetry.events import Stage, WaitReason
from telemetry.gauges import Gauge

_WAITING = {
    WaitReason.KV_BLOCKS: Gauge.WAITING_KV_BLOCKS,
    WaitReason.TOKEN_BUDGET: Gauge.WAITING_TOKEN_BUDGET,
    WaitReason.MAX_RUNNING: Gauge.WAITING_MAX_RUNNING,
    WaitReason.PREEMPTED: Gauge.WAITING_PREEMPTED,
}


class SchedulerStage(SyncStage):
    """Every turn of the loop takes everything in, and then plans as many steps as may be in flight."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        self._runner = Outbox(context.zmq, self.outbox_address(Stage.RUNNER))
        self._detokenizer = Outbox(context.zmq, self.outbox_address(Stage.DETOKENIZER))
        limits = _limits(context)
        self._scheduler = Scheduler(
            limits, journal=self.journal, runner=self._runner, detokenizer=self._detokenizer, log=self.log
        )
        self.gauges.set(Gauge.BLOCKS_TOTAL, limits.num_blocks)
        self._refresh_gauges()

    def on_messages(self, messages: list[DataMessage]) -> None:
        """Take everything in; what follows from it is decided once, in `on_turn`."""
        for message in messages:
            match message:
                case StepResult():
                    self._scheduler.apply(message)
                case Enqueue():
                    self._scheduler.enqueue(message)
                case Abort():
                    self._scheduler.abort(message)
                case StopHit():
                    self._scheduler.stop(message)
                case _:
                    self.log.warning("unexpected message", message=type(message).__name__)

    def on_directory(self, directory: Directory) -> None:
        """Only the gateway matters here: the replica's own stages live and die with this one."""
        self._scheduler.gateway_is(directory.gateway)

    def on_control(self, message: ControlMessage) -> None:
        """An operator resets the prefix cache."""
        if isinstance(message, ResetCache):
            blocks = self._scheduler.reset_cache()
            self.log.info("prefix cache reset", blocks=blocks)
            self.control.send(CacheReset(message.question, self.context.replica, blocks))
        else:
            super().on_control(message)

    def on_turn(self) -> None:
        """Keep the runner busy first, then tell the others."""
        while (step := self._scheduler.schedule()) is not None:
            self._scheduler.submit(step)
        self._scheduler.flush()
        self._refresh_gauges()

    def finish(self) -> None:
        """Let the detokenizer have what was said."""
        self._detokenizer.flush_and_close()
        self._runner.flush_and_close()

    def _refresh_gauges(self) -> None:
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        self.gauges.set(Gauge.RUNNING, len(scheduler.running))
        for reason, gauge in _WAITING.items():
            self.gauges.set(gauge, scheduler.queue.counts[reason])
        self.gauges.set(Gauge.BLOCKS_FREE, pool.num_free)
        self.gauges.set(Gauge.BLOCKS_ACTIVE, pool.num_active)
        self.gauges.set(Gauge.BLOCKS_CACHED, pool.num_cached)
        self.gauges.set(Gauge.LAST_STEP_ID, scheduler.last_step_id)
        self.gauges.set(Gauge.LAST_STEP_NS, scheduler.last_step_ns)
        self.gauges.set(Gauge.PENDING_SINCE_NS, scheduler.pending_since_ns)
        self.gauges.set(Gauge.SENT_RUNNER, self._runner.sent)
        self.gauges.set(Gauge.SENT_DETOKENIZER, self._detokenizer.sent)


def _limits(context: ProcessContext) -> Limits:
    folder = Path(context.run.model.path)
    try:
        return Limits.of(ModelShape.from_folder(folder), context.config)
    except (OSError, KeyError, ValueError) as e:
        raise CannotStartError(f"cannot read the model's configuration in {folder}: {e!r}") from e
