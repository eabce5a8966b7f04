"""PromQL made from the metric table: a name, type or label that is not in it is an error here, not an empty panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from telemetry.metric import Kind, Metric
from telemetry.metric_table import BY_NAME

Where = Mapping[str, str]
"""Label to operator and value, as PromQL writes them: ``{"state": '="free"'}``."""


class Expr(msgspec.Struct, frozen=True):
    """An expression, the metrics that it is made from, and the labels that its series have."""

    text: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()

    def __truediv__(self, other: Expr) -> Expr:
        return Expr(f"{self.text} / {other.text}", (*self.metrics, *other.metrics), self.labels)


class Queries:
    """Makes expressions whose rates are over `window`; `scope` is asked of every metric that has those labels."""

    def __init__(self, window: str, scope: Where | None = None) -> None:
        self._window = window
        self._scope = scope or {}

    def gauge(self, name: str, by: Sequence[str] = (), how: str = "sum", where: Where | None = None) -> Expr:
        """A gauge, put together by `how` (``sum``, ``max``, …). Raises ValueError when it is not one."""
        selector = self._selector(name, Kind.GAUGE, by, where)
        return _aggregated(how, by, selector, name)

    def slope(self, name: str, by: Sequence[str] = ()) -> Expr:
        """By how much a gauge grows per second. Raises ValueError when it is not one."""
        selector = self._selector(name, Kind.GAUGE, by, None)
        return _aggregated("sum", by, f"deriv({selector}[{self._window}])", name)

    def rate(self, name: str, by: Sequence[str] = (), how: str = "sum") -> Expr:
        """A counter's growth per second. Raises ValueError when it is not one."""
        selector = self._selector(name, Kind.COUNTER, by, None)
        return _aggregated(how, by, f"rate({selector}[{self._window}])", name)

    def increase(self, name: str, by: Sequence[str] = ()) -> Expr:
        """A counter's growth in the window. Raises ValueError when it is not one."""
        selector = self._selector(name, Kind.COUNTER, by, None)
        return _aggregated("sum", by, f"increase({selector}[{self._window}])", name)

    def observed(self, name: str, by: Sequence[str] = (), where: Where | None = None) -> Expr:
        """Observations of a histogram per second. Raises ValueError when it is not one."""
        selector = self._selector(name, Kind.HISTOGRAM, by, where, "_count")
        return _aggregated("sum", by, f"rate({selector}[{self._window}])", name)

    def within(self, name: str, bound: float, by: Sequence[str] = ()) -> Expr:
        """Observations of a histogram up to `bound`, per second. Raises ValueError when no bucket ends there."""
        selector = self._selector(name, Kind.HISTOGRAM, by, {"le": f'="{bound}"'}, "_bucket")
        if bound not in BY_NAME[name].buckets:
            raise ValueError(f"{name} has no bucket that ends at {bound:g}: choose one of {BY_NAME[name].buckets}")
        return _aggregated("sum", by, f"rate({selector}[{self._window}])", name)

    def buckets(self, name: str, by: Sequence[str] = ()) -> Expr:
        """Observations of a histogram per second and bucket. Raises ValueError when it is not one."""
        selector = self._selector(name, Kind.HISTOGRAM, by, None, "_bucket")
        return _aggregated("sum", ("le", *by), f"rate({selector}[{self._window}])", name)

    def quantile(self, share: float, name: str, by: Sequence[str] = ()) -> Expr:
        """What `share` of a histogram's observations are at most. Raises ValueError when it is not one."""
        buckets = self.buckets(name, by).text
        return Expr(f"histogram_quantile({share:g}, {buckets})", (name,), tuple(by))

    def _selector(self, name: str, kind: Kind, by: Sequence[str], where: Where | None, suffix: str = "") -> str:
        metric = _metric(name, kind)
        labels = {*metric.common, *metric.labels, *(("le",) if kind is Kind.HISTOGRAM else ())}
        if unknown := {*by, *(where or {})} - labels:
            raise ValueError(f"{name} has no label {', '.join(sorted(unknown))}; it has {', '.join(sorted(labels))}")
        matchers = {label: value for label, value in self._scope.items() if label in labels} | dict(where or {})
        inside = ",".join(label + value for label, value in matchers.items())
        return f"{name}{suffix}{{{inside}}}" if inside else name + suffix


def _metric(name: str, kind: Kind) -> Metric:
    if name not in BY_NAME:
        raise ValueError(f"there is no metric {name} in telemetry/metric_table.py")
    if BY_NAME[name].kind is not kind:
        raise ValueError(f"{name} is a {BY_NAME[name].kind}, not a {kind}")
    return BY_NAME[name]


def _aggregated(how: str, by: Sequence[str], inner: str, name: str) -> Expr:
    clause = f" by ({', '.join(by)}) " if by else ""
    return Expr(f"{how}{clause}({inner})", (name,), tuple(by))
