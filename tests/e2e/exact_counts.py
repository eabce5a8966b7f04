"""The four accounts of a load, side by side: the client's, the store's, the token log's, and what metrics grew by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from telemetry import schema
from tests.e2e.mixed_load import OPERATIONS, Outcome
from tests.e2e.served import Served

Row = dict[str, Any]


class Counts:
    """All samples of one scrape."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self._samples = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def grown(self, before: Counts, name: str, *by: str, **having: str) -> dict[Any, float]:
        """By how much the series of a name have grown, by the values of labels; those that have not are left out."""
        found: defaultdict[Any, float] = defaultdict(float)
        for (sample, labels), value in self._samples.items():
            own = dict(labels)
            if sample == name and having.items() <= own.items():
                key = tuple(own[label] for label in by)
                found[key if len(by) > 1 else "".join(key)] += value - before._samples.get((sample, labels), 0.0)
        return {key: value for key, value in found.items() if value}

    def total(self, before: Counts, name: str, **having: str) -> float:
        """The same, of all series together."""
        return sum(self.grown(before, name, **having).values())


class Accounts:
    """What store and token log have of a run's requests."""

    def __init__(self, served: Served, outcomes: Iterable[Outcome], before: Counts) -> None:
        self.outcomes = list(outcomes)
        self.before = before
        self._ids = {outcome.client_id for outcome in self.outcomes}
        served.eventually(lambda: self._all_ended(served), 30, "every request finished in the store")
        self.requests = self._rows(served)
        ids = {row["request_id"] for row in self.requests.values()}
        self.sequences = [row for row in served.rows(schema.sequences) if row["request_id"] in ids]
        self.lines = [line for line in served.token_lines() if line["request_id"] in ids]
        self.metrics = Counts(served.get("/metrics"))

    def _rows(self, served: Served) -> dict[str, Row]:
        rows = served.rows(schema.requests)
        return {row["client_request_id"]: row for row in rows if row["client_request_id"] in self._ids}

    def _all_ended(self, served: Served) -> bool:
        rows = self._rows(served)
        ended = all(row["state"] == "finished" for row in rows.values())
        counted = Counts(served.get("/metrics")).total(self.before, "vitrine_requests_total")
        return set(rows) == self._ids and ended and counted >= len(rows)

    # --- comparisons --------------------------------------------------------------------------------

    def check(self) -> None:
        """All of them."""
        self.check_requests()
        self.check_tokens()
        self.check_the_store_against_the_client()
        self.check_the_log_against_the_store()
        self.check_histograms()
        self.check_sinks()

    def check_requests(self) -> None:
        grown = self.metrics.grown(self.before, "vitrine_requests_total", "endpoint", "finish_reason")
        assert grown == Counter((o.endpoint, o.finish_reason) for o in self.outcomes)
        assert grown == Counter((r["endpoint"], r["finish_reason"]) for r in self.requests.values())
        name = "gen_ai_server_request_duration_seconds_count"
        by_error = self.metrics.grown(self.before, name, "gen_ai_operation_name", "error_type")
        assert by_error == Counter((OPERATIONS[r["endpoint"]], _error_of(r)) for r in self.requests.values())
        refused = {key: n for key, n in by_error.items() if key[1] and "client" not in key[1]}
        assert refused == Counter((o.operation, o.error) for o in self.outcomes if o.error)

    def check_tokens(self) -> None:
        rows = self.requests.values()
        for name, column in (
            ("vitrine_prompt_tokens_total", "prompt_tokens"),
            ("vitrine_request_prompt_tokens_sum", "prompt_tokens"),
            ("vitrine_generation_tokens_total", "output_tokens"),
            ("vitrine_request_generation_tokens_sum", "output_tokens"),
            ("vitrine_wasted_tokens_total", "wasted_tokens"),
            ("vitrine_preemptions_total", "preemptions"),
        ):
            assert self.metrics.total(self.before, name) == sum(row[column] or 0 for row in rows), name
        assert all(line["finish_reason"] for line in self.lines)
        delivered = sum(len(line["output_token_ids"]) for line in self.lines)
        assert self.metrics.total(self.before, "vitrine_generation_tokens_total") == delivered

    def check_the_store_against_the_client(self) -> None:
        by_request = Counter(row["request_id"] for row in self.sequences)
        for outcome in self.outcomes:
            row = self.requests[outcome.client_id]
            seen = (outcome.endpoint, outcome.finish_reason)
            assert (row["endpoint"], row["finish_reason"]) == seen, outcome
            assert outcome.error in ("", _error_of(row)), outcome
            assert outcome.prompt_tokens in (None, row["prompt_tokens"]), (outcome, row["prompt_tokens"])
            assert outcome.output_tokens in (None, row["output_tokens"]), (outcome, row["output_tokens"])
            assert outcome.received_tokens <= row["output_tokens"], outcome
            assert outcome.sequences in (None, by_request[row["request_id"]]), outcome
            assert outcome.first_token in (None, row["first_increment_at"] is not None), outcome

    def check_the_log_against_the_store(self) -> None:
        rows = {row["request_id"]: row for row in self.requests.values()}
        logged = {(line["request_id"], line["index"]): line for line in self.lines}
        assert len(logged) == len(self.lines), "a line twice"
        assert set(logged) == {(row["request_id"], row["idx"]) for row in self.sequences}
        for row in self.sequences:
            line = logged[row["request_id"], row["idx"]]
            got = (line["finish_reason"], len(line["output_token_ids"]), len(line["prompt_token_ids"]))
            assert got == (row["finish_reason"], row["output_tokens"], row["prompt_tokens"])
            assert line["cached_tokens"] == row["cached_tokens"]
            assert len(line["token_times_ms"]) == len(line["step_ids"]) == row["output_tokens"]
        for request_id, row in rows.items():
            own = [line for line in self.lines if line["request_id"] == request_id]
            assert row["output_tokens"] == sum(len(line["output_token_ids"]) for line in own)

    def check_histograms(self) -> None:
        """Each one's count is the number of things that it observes."""
        rows, lengths = self.requests.values(), [len(line["output_token_ids"]) for line in self.lines]
        expected = {
            "gen_ai_server_request_duration_seconds": len(rows),
            "gen_ai_server_time_to_first_token_seconds": _count(rows, "first_increment_at"),
            "gen_ai_server_time_per_output_token_seconds": sum(n > 1 for n in lengths),
            "vitrine_inter_token_latency_seconds": sum(max(0, n - 1) for n in lengths),
            "vitrine_request_prompt_tokens": len(rows),
            "vitrine_request_generation_tokens": len(rows),
        }
        for name, things in expected.items():
            assert self.metrics.total(self.before, f"{name}_count") == things, name
        stages: dict[str, Mapping[str, Any] | float] = {
            **{stage: _count(rows, f"{stage}_s") for stage in ("tokenize", "drain", "transport")},
            **{stage: _count(self.sequences, f"{stage}_s") for stage in ("queue", "prefill", "decode", "detokenize")},
            "preempted": sum(bool(row["preempted_s"]) for row in self.sequences),
        }
        grown = self.metrics.grown(self.before, "vitrine_stage_duration_seconds_count", "stage")
        assert grown == {stage: number for stage, number in stages.items() if number}
        self.check_sums(rows)

    def check_sums(self, rows: Iterable[Row]) -> None:
        """Seconds too are the same in the histograms and in the store, up to the order of adding them."""
        names = {
            "ttft_s": "gen_ai_server_time_to_first_token_seconds",
            "e2e_s": "gen_ai_server_request_duration_seconds",
        }
        for column, name in names.items():
            stored = sum(row[column] or 0.0 for row in rows)
            assert abs(self.metrics.total(self.before, f"{name}_sum") - stored) < 1e-6 * max(1.0, stored), name

    def check_sinks(self) -> None:
        assert self.metrics.total(self.before, "vitrine_telemetry_dropped_total") == 0
        written = self.metrics.grown(self.before, "vitrine_telemetry_events_total", "sink")
        assert written["token_log"] == len(self.lines)

    def of(self, matches: Callable[[Outcome], bool]) -> int:
        """How many of the client's requests there are."""
        return sum(map(matches, self.outcomes))


def _error_of(row: Row) -> str:
    """The label's value: "" for a request that went well."""
    return "" if row["finish_reason"] in ("stop", "length") else row["error_type"] or row["finish_reason"]


def _count(rows: Iterable[Row], column: str) -> int:
    return sum(row[column] is not None for row in rows)
