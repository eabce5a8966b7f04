from __future__ import annotations

import pytest
from rich.console import Console

from engine.bench.load import Measured
from engine.bench.local_server import ServerFailedError, cpu_used
from engine.bench.overhead import Overhead, Round, Side, dropped_items
from engine.bench.overhead_report import overhead_notes, overhead_table, process_table
from engine.bench.report import summarize
from engine.bench.results import Arrival, RequestResult
from engine.bench.workload import Workload


def make_summary(tokens: int, gap_s: float):
    arrivals = [Arrival(i * gap_s, 1, 1) for i in range(tokens)]
    result = RequestResult(0.0, tokens * gap_s, arrivals, prompt_tokens=3, usage_tokens=tokens, finish_reason="length")
    return summarize(Measured(Workload(), [result], duration_s=tokens * gap_s))


def make_side(cpu_s: dict[str, float], tokens: int = 100, gap_s: float = 0.01) -> Side:
    return Side(make_summary(tokens, gap_s), make_summary(tokens, gap_s), cpu_s)


def make_overhead(rounds: int = 6, **more) -> Overhead:
    """Telemetry costs 1 % of the CPU time and 0.1 ms per token."""
    on = make_side({"r0 runner": 1.0, "telemetry": 0.01}, gap_s=0.0101)
    return Overhead([Round(on, make_side({"r0 runner": 1.0}))] * rounds, **({"dropped": 0, "span_bytes": 10} | more))


def text_of(content) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(content)
    return capture.get()


def test_cpu_time_is_that_of_all_processes_per_output_token():
    overhead = make_overhead()
    assert overhead.cpu_ratio().median == pytest.approx(1.01)
    assert overhead.throughput_ratio().median == pytest.approx(100 / 101)
    assert overhead.itl_difference_s().median == pytest.approx(0.0001)
    assert overhead.rounds[0].on.cpu_s_per_token() == pytest.approx(0.0101)
    assert overhead.rounds[0].off.cpu_s_per_token("telemetry") == 0


def test_what_each_process_used_is_told_apart_by_name():
    assert cpu_used({(1, "a"): 1.0, (2, "b"): 2.0}, {(1, "a"): 1.5, (2, "b"): 2.0}) == {"a": 0.5, "b": 0.0}


def test_a_process_that_was_replaced_makes_the_measurement_void():
    with pytest.raises(ServerFailedError, match="r0 runner"):
        cpu_used({(1, "r0 runner"): 1.0}, {(2, "r0 runner"): 0.1})


def test_what_telemetry_lost_is_read_from_its_metrics():
    lines = [
        "# TYPE vitrine_telemetry_dropped_total counter",
        'vitrine_telemetry_dropped_total{sink="spans"} 2.0',
        'vitrine_telemetry_dropped_total{sink="store"} 1.0',
        'vitrine_telemetry_events_total{sink="store"} 7.0',
    ]
    assert dropped_items("\n".join(lines)) == 3
    assert dropped_items("") == 0


def test_the_report_says_what_was_measured_and_what_speaks_against_it():
    assert "+1.0%" in text_of(overhead_table(make_overhead()))
    assert "+0.10 ms" in text_of(overhead_table(make_overhead()))
    assert "telemetry" in text_of(process_table(make_overhead()))
    assert len(overhead_notes(make_overhead())) == 1
    assert "lost 3 items" in "\n".join(overhead_notes(make_overhead(dropped=3)))
    assert "no spans arrived" in "\n".join(overhead_notes(make_overhead(span_bytes=0)))
