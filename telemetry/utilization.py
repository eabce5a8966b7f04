"""How much of what the device was measured to reach the engine's steps use.

Over the steps of the last `WINDOW_S` seconds, by replica and kind: work done / time spent executing, against the peak.
Time between steps does not count here (see ``vitrine_runner_idle_seconds_total`` for that); without any step in the
window the share is 0.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

import msgspec

from telemetry.events import Compute, ReplicaInfo, StepKind
from telemetry.facts import StepFacts, seconds
from telemetry.step_work import step_work

WINDOW_S = 10

Key = tuple[str, str]
"""(replica, kind of step)."""


class Achieved(msgspec.Struct, frozen=True):
    """Of the steps of one kind in the window. Shares are of the measured peak."""

    flops_per_s: float = 0.0
    bytes_per_s: float = 0.0
    flops_share: float = 0.0
    bytes_share: float = 0.0


class _Done(msgspec.Struct):
    """What was done within one second."""

    second: int
    flops: float = 0.0
    bytes: float = 0.0
    execute_s: float = 0.0


class Utilization:
    """Takes steps; tells what was achieved. Replicas whose work or peak is not known are left out."""

    def __init__(self) -> None:
        self._compute: dict[str, Compute] = {}
        self._done: defaultdict[Key, deque[_Done]] = defaultdict(deque)

    def know(self, replica: str, info: ReplicaInfo | None) -> None:
        """What a replica's latest incarnation runs; None when it has none that was ever ready.

        Work is told against the peak that it was done under: when that changes, earlier work is forgotten.
        """
        compute = info.compute if info is not None and info.compute is not None and info.compute.work else None
        if compute == self._compute.get(replica):
            return
        for kind in StepKind:
            self._done.pop((replica, str(kind)), None)
        if compute is not None:
            self._compute[replica] = compute
        else:
            self._compute.pop(replica, None)

    def add_step(self, step: StepFacts) -> None:
        """A step was made."""
        record = step.record
        compute = self._compute.get(step.scope.replica)
        if compute is None or compute.work is None:
            return
        work = step_work(compute.work, record.starts, record.num_tokens, step.sampled_tokens)
        done = self._second(step.scope.replica, str(record.kind), record.published_ns)
        done.flops += work.flops
        done.bytes += work.bytes
        done.execute_s += seconds(record.exec_start_ns, record.sampled_ns)

    def achieved(self, now_ns: int) -> dict[Key, Achieved]:
        """By replica and kind, for every replica that is known."""
        return {
            (replica, str(kind)): self._achieved((replica, str(kind)), compute, now_ns)
            for replica, compute in self._compute.items()
            for kind in StepKind
        }

    def sample(self, replica: str, now_ns: int) -> dict[str, float]:
        """The values of `telemetry.samples`; of "" (the whole system) those of the replica that uses most."""
        achieved = self.achieved(now_ns)
        values: dict[str, float] = {}
        for (owner, kind), found in achieved.items():
            if replica in ("", owner):
                for name in Achieved.__struct_fields__:
                    key = f"{kind}_{name}"
                    values[key] = max(values.get(key, 0.0), getattr(found, name))
        return values

    def _second(self, replica: str, kind: str, at_ns: int) -> _Done:
        done, second = self._done[replica, kind], at_ns // 1_000_000_000
        if not done or done[-1].second < second:
            done.append(_Done(second))
        if len(done) > WINDOW_S + 1:
            done.popleft()
        return done[-1]

    def _achieved(self, key: Key, compute: Compute, now_ns: int) -> Achieved:
        recent = list(self._recent(key, now_ns // 1_000_000_000))
        execute_s = sum(done.execute_s for done in recent)
        if not execute_s:
            return Achieved()
        flops_per_s = sum(done.flops for done in recent) / execute_s
        bytes_per_s = sum(done.bytes for done in recent) / execute_s
        speed = compute.speed
        return Achieved(flops_per_s, bytes_per_s, flops_per_s / speed.flops_per_s, bytes_per_s / speed.read_bytes_per_s)

    def _recent(self, key: Key, second: int) -> Iterator[_Done]:
        return (done for done in self._done.get(key, ()) if done.second > second - WINDOW_S)
