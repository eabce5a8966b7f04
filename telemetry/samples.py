"""One sample per second and replica: what the overview's charts draw.

A row of `schema.samples` holds these values ("" is the whole system; seconds unless the name says otherwise):

===============================  ===================================================================
ttft_p50_s, _p95_s, _p99_s       TTFT of the requests that finished in the last `WINDOW_S` seconds, or null
itl_p50_s, _p95_s, _p99_s        ITL of the tokens sampled in the last `WINDOW_S` seconds, or null
e2e_p50_s, _p95_s, _p99_s        e2e of the requests that finished in the last `WINDOW_S` seconds, or null
prompt_tokens, generation_tokens tokens computed for prompts, tokens sampled, in this second
requests_finished                requests that ended in this second, of whatever reason
requests_errors                  of these, with an error that was not the client's mistake
requests_refused                 of these, refused for the client's mistake (4xx without 429)
running, waiting                 sequences, at the end of the second
waiting_<reason>                 of the waiting ones, by WaitReason
blocks_free, _active, _cached    KV blocks by state
prefix_queried_tokens, _hit_tokens   prompt tokens looked up in the prefix cache, and found, in this second
prefix_hit_rate                  found / looked up over the last `WINDOW_S` seconds, or null
busy_<stage>                     share of the second that the stage worked, 0–1 (for "": the busiest replica)
prefill_step_s, decode_step_s, mixed_step_s   time spent in engine steps of that kind
idle_s                           time the runner waited for the host with work pending
<kind>_flops_per_s, _bytes_per_s what steps of that kind achieved in the last 10 s while they executed, and
<kind>_flops_share, _bytes_share the share of what the device was measured to reach (`telemetry.utilization`);
                                 absent where that is not known; of "" the replica that uses most
cost_output, cost_total          cost of a million tokens over the last minute (`telemetry.serving_cost`), or absent
steps                            engine steps in this second
===============================  ===================================================================

What happened is booked to the second in which it was read, about a tenth of a second after it happened.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from telemetry.events import StepKind, WaitReason
from telemetry.facts import RequestFacts, StepFacts
from telemetry.pages import ReplicaGauges

WINDOW_S = 10
_SUMMED = ("running", "waiting", *(f"waiting_{r}" for r in WaitReason), "blocks_free", "blocks_active", "blocks_cached")


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of sorted values; None of none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Window:
    """Values of the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[list[float]] = deque([[]], maxlen=WINDOW_S)

    def extend(self, values: Iterable[float]) -> None:
        self._seconds[-1].extend(values)

    def roll(self) -> dict[str, float | None]:
        """Percentiles over the window; the next second begins."""
        ordered = sorted(value for second in self._seconds for value in second)
        self._seconds.append([])
        return {name: percentile(ordered, share) for name, share in _PERCENTILES}


_PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_LATENCIES = ("ttft", "itl", "e2e")


class _Series:
    """What is summed up for one replica (or the whole system) in the present second."""

    def __init__(self) -> None:
        self.latencies = {name: _Window() for name in _LATENCIES}
        self.counts: defaultdict[str, float] = defaultdict(float)
        self._lookups: deque[tuple[float, float]] = deque(maxlen=WINDOW_S)  # (found, looked up) of each second

    def roll(self) -> dict[str, float | None]:
        values: dict[str, float | None] = {name: self.counts[name] for name in _COUNTED}
        values["prefix_hit_rate"] = self._hit_rate()
        for name, window in self.latencies.items():
            values |= {f"{name}_{p}_s": value for p, value in window.roll().items()}
        self.counts.clear()
        return values

    def _hit_rate(self) -> float | None:
        self._lookups.append((self.counts["prefix_hit_tokens"], self.counts["prefix_queried_tokens"]))
        found, queried = map(sum, zip(*self._lookups, strict=True))
        return found / queried if queried else None


_COUNTED = (
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
    "requests_errors",
    "requests_refused",
    "prefix_queried_tokens",
    "prefix_hit_tokens",
    *(f"{kind}_step_s" for kind in StepKind),
    "idle_s",
    "steps",
)


class Samples:
    """Collects facts; `roll` closes a second."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = defaultdict(_Series)
        self._series[""] = _Series()
        self._busy_before: dict[tuple[str, str], float] = {}

    def add_request(self, facts: RequestFacts) -> None:
        """A request has finished."""
        for series in self._of(facts.replica):
            series.counts["requests_finished"] += 1
            series.counts["requests_errors"] += facts.finish_reason == "error" and not facts.refused
            series.counts["requests_refused"] += facts.refused
            if facts.times.ttft_s is not None:
                series.latencies["ttft"].extend([facts.times.ttft_s])
            if facts.times.e2e_s is not None:
                series.latencies["e2e"].extend([facts.times.e2e_s])

    def add_step(self, step: StepFacts) -> None:
        """An engine step was read."""
        record = step.record
        for series in self._of(step.scope.replica):
            counts = series.counts
            counts["steps"] += 1
            counts["prompt_tokens"] += step.prompt_tokens
            counts["generation_tokens"] += step.sampled_tokens
            counts["prefix_queried_tokens"] += record.queried_tokens
            counts["prefix_hit_tokens"] += record.hit_tokens
            counts[f"{record.kind}_step_s"] += step.duration_s
            counts["idle_s"] += record.idle_ns / 1e9
            series.latencies["itl"].extend(step.gaps_s)

    def roll(
        self, gauges: dict[str, ReplicaGauges], busy_s: dict[tuple[str, str], float], elapsed_s: float
    ) -> dict[str, dict[str, float | None]]:
        """The samples of the second that ends now, by replica.

        `gauges` are the scheduler's, by replica; `busy_s` is the total busy time by (stage, replica).
        """
        busy = self._busy_shares(busy_s, elapsed_s)
        return {replica: self._values(replica, gauges, busy) for replica in self._present(gauges)}

    def _present(self, gauges: dict[str, ReplicaGauges]) -> list[str]:
        """Replicas that there are; the series of one that is gone is forgotten."""
        for gone in set(self._series) - set(gauges) - {""}:
            del self._series[gone]
        return ["", *gauges]

    def _values(
        self, replica: str, gauges: dict[str, ReplicaGauges], busy: dict[tuple[str, str], float]
    ) -> dict[str, float | None]:
        values = self._series[replica].roll()
        chosen = gauges.values() if replica == "" else [gauges[replica]]
        for name in _SUMMED:
            values[name] = sum(g.value(name) for g in chosen)
        for (stage, owner), share in busy.items():
            if replica in ("", owner):
                key = f"busy_{stage}"
                values[key] = max(values.get(key) or 0.0, share)
        return values

    def _busy_shares(self, busy_s: dict[tuple[str, str], float], elapsed_s: float) -> dict[tuple[str, str], float]:
        shares = {
            key: min(1.0, max(0.0, (total - self._busy_before.get(key, total)) / elapsed_s))
            for key, total in busy_s.items()
        }
        self._busy_before = dict(busy_s)
        return shares

    def _of(self, replica: str) -> list[_Series]:
        return [self._series[""]] if not replica else [self._series[""], self._series[replica]]
