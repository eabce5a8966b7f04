"""The orderly end goes phase by phase."""

from engine.messages import Drain, Ready, Stop
from engine.replicas import shutdown as shutdown_module
from engine.replicas.shutdown import Shutdown
from engine.replicas.unit import Unit
from telemetry.events import REPLICA_STAGES, ReplicaState, Stage
from tests.replicas.test_unit import FakeLauncher


def running_system():
    launcher = FakeLauncher()
    units = [
        Unit("r0", REPLICA_STAGES, replica="r0"),
        Unit("gateway", (Stage.GATEWAY,)),
        Unit("telemetry", (Stage.TELEMETRY,)),
        Unit("dashboard", (Stage.DASHBOARD,)),
    ]
    for unit in units:
        unit.start(launcher)
        for stage in unit.stages:
            unit.mark_ready(stage, Ready({}))
    return units


def begin(units, drain_s=60.0):
    sent = []
    shutdown = Shutdown.orderly(units, drain_s, lambda unit, message: sent.append((unit.name, type(message))))
    return shutdown, sent


def test_phases_follow_each_other_as_units_end():
    units = running_system()
    shutdown, sent = begin(units)
    assert sent == [("gateway", Drain)] and not shutdown.step()
    assert units[0].state is ReplicaState.DRAINING
    shutdown.drained = True
    shutdown.step()
    assert sent[1:] == [("gateway", Stop), ("dashboard", Stop)]
    assert shutdown.was_told_to_stop(units[1]) and not shutdown.was_told_to_stop(units[0])
    for name, following in (("gateway", 3), ("dashboard", 4)):
        next(u for u in units if u.name == name).kill()
        shutdown.step()
        assert len(sent) == following
    assert sent[3] == ("r0", Stop)
    units[0].kill()
    shutdown.step()
    assert sent[4:] == [("telemetry", Stop)]
    units[2].kill()
    assert shutdown.step()


def test_a_drain_that_takes_too_long_is_cut(monkeypatch):
    monkeypatch.setattr(shutdown_module, "DRAIN_GRACE_S", 0.0)
    units = running_system()
    shutdown, sent = begin(units, drain_s=0.0)
    shutdown.step()
    assert ("gateway", Stop) in sent


def test_units_that_do_not_stop_are_killed(monkeypatch):
    for name in ("DRAIN_GRACE_S", "STOP_TIMEOUT_S", "TELEMETRY_TIMEOUT_S"):
        monkeypatch.setattr(shutdown_module, name, 0.0)
    units = running_system()
    shutdown, _ = begin(units, drain_s=0.0)
    while not shutdown.step():
        pass
    assert not any(unit.alive for unit in units)


def test_a_dead_gateway_needs_no_draining():
    units = running_system()
    units[1].kill()
    shutdown, sent = begin(units)
    shutdown.step()
    assert ("dashboard", Stop) in sent


def test_a_forced_end_kills_the_replicas_and_lets_the_others_say_so():
    units = running_system()
    sent = []
    shutdown = Shutdown.forced(units, lambda unit, message: sent.append((unit.name, type(message))))
    assert not units[0].alive and sent == [("gateway", Stop), ("dashboard", Stop)]
    units[1].kill()
    units[3].kill()
    assert not shutdown.step() and sent[2:] == [("telemetry", Stop)]
    units[2].kill()
    assert shutdown.step()
