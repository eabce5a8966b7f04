"""What must hold of every page of metrics, and from one page to the next."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.served import Served

Labels = frozenset[tuple[str, str]]
Key = tuple[str, Labels]

_GROWING = ("_total", "_count", "_sum", "_bucket")


def values_of(text: str) -> dict[Key, float]:
    """Every sample of a page; each there once, each family declared once."""
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared)), "a family is declared twice"
    values: dict[Key, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values, f"twice on one page: {key}"
            values[key] = sample.value
    return values


def scraped(served: Served) -> dict[Key, float]:
    """The page as it is now."""
    return values_of(served.get("/metrics"))


def check_page(values: Mapping[Key, float]) -> None:
    """Nothing is negative, ratios are ratios, buckets rise to the count."""
    buckets: defaultdict[Key, list[tuple[float, float]]] = defaultdict(list)
    for (name, labels), value in values.items():
        assert value >= 0, (name, labels, value)
        if name == "vitrine_kv_cache_usage_ratio":
            assert value <= 1
        if name.endswith("_bucket"):
            own = dict(labels)
            bound = float(own.pop("le"))
            buckets[name.removesuffix("_bucket"), frozenset(own.items())].append((bound, value))
    for (name, labels), series in buckets.items():
        counts = [count for _, count in sorted(series)]
        assert counts == sorted(counts), (name, labels)
        assert counts[-1] == values[f"{name}_count", labels], (name, labels)


def check_growth(before: Mapping[Key, float], after: Mapping[Key, float]) -> None:
    """What only grows has neither fallen nor gone."""
    for key, value in before.items():
        if key[0].endswith(_GROWING):
            assert after.get(key, -1.0) >= value, (key, value, after.get(key))


def total(values: Mapping[Key, float], name: str, **having: str) -> float:
    """Sum of the series of a name."""
    return sum(v for (n, labels), v in values.items() if n == name and having.items() <= dict(labels).items())


def quantile(before: Mapping[Key, float], after: Mapping[Key, float], name: str, share: float, **having: str) -> float:
    """As PromQL's histogram_quantile has it, of what was observed between two pages."""
    grown: defaultdict[float, float] = defaultdict(float)
    for (sample, labels), value in after.items():
        own = dict(labels)
        if sample == f"{name}_bucket" and having.items() <= own.items():
            grown[float(own["le"])] += value - before.get((sample, labels), 0.0)
    rank, below, lower = share * max(grown.values()), 0.0, 0.0
    for bound, count in sorted(grown.items()):
        if count >= rank and count > below:
            return lower + (bound - lower) * (rank - below) / (count - below)
        below, lower = count, bound
    raise AssertionError(f"nothing was observed by {name}")


class Watcher:
    """Scrapes at a pace in a thread of its own."""

    def __init__(self, served: Served, pace_s: float) -> None:
        self._pages: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(served, pace_s), daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Check each page, and against the one before; returns their number."""
        self._stopping.set()
        self._thread.join()
        before: dict[Key, float] = {}
        for page in self._pages:
            after = values_of(page)
            check_page(after)
            check_growth(before, after)
            before = after
        return len(self._pages)

    def _watch(self, served: Served, pace_s: float) -> None:
        while not self._stopping.wait(pace_s):
            self._pages.append(served.get("/metrics"))
