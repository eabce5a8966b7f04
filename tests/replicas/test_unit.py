"""A unit's life: start, ready, fail, backoff."""

from engine.messages import Ready
from engine.replicas import unit as unit_module
from engine.replicas.unit import LONGEST_BACKOFF_S, Unit
from telemetry.events import REPLICA_STAGES, ReplicaState, Stage


class FakeProcess:
    def __init__(self, stage: Stage, pid: int) -> None:
        self.stage, self.pid, self.code = stage, pid, None

    def exit_code(self):
        return self.code

    def exit_status(self):
        return None if self.code is None else f"exit code {self.code}"

    def kill(self):
        self.code = -9 if self.code is None else self.code


class FakeLauncher:
    def __init__(self) -> None:
        self.started: list[FakeProcess] = []

    def start(self, stage, replica, incarnation, listen_fd=None):
        self.started.append(FakeProcess(stage, 1000 + len(self.started)))
        return self.started[-1]


def started_replica():
    launcher, replica = FakeLauncher(), Unit("r0", REPLICA_STAGES, replica="r0")
    replica.start(launcher)
    return replica, launcher


def make_ready(replica):
    for stage in REPLICA_STAGES:
        replica.mark_ready(stage, Ready({}))


def test_a_replica_is_ready_only_when_every_stage_is():
    replica, _ = started_replica()
    answers = [replica.mark_ready(stage, Ready({})) for stage in REPLICA_STAGES]
    assert answers == [False, False, False, True]
    assert replica.state is ReplicaState.READY


def test_one_dead_stage_takes_the_others_with_it():
    replica, launcher = started_replica()
    launcher.started[2].code = -9
    assert [p.stage for p in replica.dead()] == [Stage.RUNNER]
    replica.fail("runner: killed by SIGKILL")
    assert all(p.code is not None for p in launcher.started)
    assert not replica.alive and replica.state is ReplicaState.UNHEALTHY and replica.restarts == 1


def test_each_start_is_a_new_incarnation_that_must_become_ready_again():
    replica, launcher = started_replica()
    make_ready(replica)
    replica.fail("x")
    replica.start(launcher)
    assert replica.incarnation == 2 and replica.state is ReplicaState.STARTING and not replica.ready


def test_backoff_doubles_to_a_limit_while_it_keeps_failing():
    replica, launcher = started_replica()
    waits = []
    for _ in range(12):
        waits.append(replica.fail("x"))
        replica.start(launcher)
    assert waits[:4] == [0.2, 0.4, 0.8, 1.6] and waits[-1] == LONGEST_BACKOFF_S


def test_backoff_starts_over_after_a_healthy_time(monkeypatch):
    monkeypatch.setattr(unit_module, "HEALTHY_AFTER_S", 0.0)
    replica, launcher = started_replica()
    make_ready(replica)
    assert replica.fail("x") == 0.2
    replica.start(launcher)
    make_ready(replica)
    assert replica.fail("x") == 0.2
