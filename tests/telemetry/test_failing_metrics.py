"""MT-03, the half that no load can show: a call that raises while metrics are made stops nothing but itself."""

import pytest

from engine.config import Config
from telemetry.exposition import Exposition
from telemetry.gauges import GaugeBoard
from telemetry.journal import JournalWriter
from telemetry.metrics import Metrics
from telemetry.run_reader import RunReader
from telemetry.sinks import Sinks
from telemetry.store import Store
from tests.telemetry.factories import Story


class FailingMetrics(Metrics):
    """Raises on the second step and on the request ``req-1``, as Prometheus' client does on a negative increase."""

    def add_step(self, step):
        if step.record.step_id == 2:
            raise ValueError("counters can only be incremented by non-negative amounts")
        super().add_step(step)

    def add_request(self, facts):
        if facts.request_id == "req-1":
            raise ValueError("counters can only be incremented by non-negative amounts")
        super().add_request(facts)


class Interpreter:
    """The collector's pass, over journals written by hand."""

    def __init__(self, folder, metrics):
        self.folder = folder
        self.complaints = []
        self.exposition = Exposition(metrics, GaugeBoard(folder / "gauges"), "tiny")
        self.store = Store(folder)
        self.sinks = Sinks(Config(data_dir=str(folder)), "run", self.store, self.exposition, metrics, None)
        self.sinks.recover()
        self.run = RunReader("run", folder, {}, self.complaints.append)
        self._writers = {}

    def write(self, story):
        for owner, record in story.entries:
            if owner.stage not in self._writers:
                self._writers[owner.stage] = JournalWriter(self.folder / f"{owner.stage}.journal", owner)
            self._writers[owner.stage].append(record)
        story.entries.clear()

    def turn(self):
        result = self.run.read()
        self.sinks.take_steps(result, self.run)
        self.sinks.take(self.run.advance(result), self.run)
        self.sinks.commit(self.run)

    def value(self, name):
        series = next(series for metric, series in self.exposition.collect() if metric.name == name)
        return sum(sum(v.counts) if hasattr(v, "counts") else v for v in series.values())


@pytest.fixture
def interpreter(tmp_path):
    (tmp_path / "gauges").mkdir()
    interpreter = Interpreter(tmp_path, FailingMetrics("tiny"))
    yield interpreter
    interpreter.sinks.close(1)


def test_what_comes_after_a_raising_call_is_counted_and_what_it_hit_is_said_to_be_lost(interpreter):
    story = Story()
    for i in range(3):
        story.complete_request(f"req-{i}")
    interpreter.write(story)
    interpreter.turn()
    assert interpreter.value("vitrine_step_duration_seconds") == 9 - 1
    assert interpreter.value("vitrine_requests_total") == 3 - 1
    assert interpreter.exposition.dropped == {"spans": 2, "metrics": 2, "token_log": 2, "store": 2}
    story.complete_request("req-3")
    interpreter.write(story)
    interpreter.turn()
    assert interpreter.value("vitrine_requests_total") == 3
    assert interpreter.exposition.dropped["metrics"] == 2, "the same record is not tried again and again"
    assert interpreter.store.finished_ids(["req-0", "req-1", "req-2", "req-3"]) == {"req-0", "req-2", "req-3"}
