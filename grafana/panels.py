"""What a dashboard is made of, before it becomes Grafana's JSON; and the panels that come again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from grafana.promql import Expr, Queries

SCOPED = Queries("$__rate_interval", {"model": '=~"$model"', "replica": '=~"$replica"'})
"""Queries of the models and replicas chosen at the top of the page."""

WITH_SHARED = Queries("$__rate_interval", {"model": '=~"$model"', "replica": '=~"$replica|"'})
"""The same, and the processes that belong to no replica (gateway, telemetry, …), whose label is empty."""

QUANTILES = (0.5, 0.9, 0.99)


class Target(msgspec.Struct, frozen=True):
    """One query of a panel, and what its lines are called."""

    expr: Expr
    legend: str = ""


class Panel(msgspec.Struct, frozen=True):
    """One panel. Its description is what the metric table says of its metrics, and `note`.

    ``kind`` is Grafana's: timeseries, stat, heatmap, table. ``width`` is in 24ths of the page.
    """

    title: str
    unit: str
    targets: tuple[Target, ...]
    kind: str = "timeseries"
    note: str = ""
    width: int = 8
    height: int = 8
    stacked: bool = False
    top: float | None = None
    colours: Mapping[str, str] = {}
    limit: float | None = None


class Row(msgspec.Struct, frozen=True):
    """A heading and the panels under it."""

    title: str
    panels: tuple[Panel, ...]


class Dashboard(msgspec.Struct, frozen=True):
    """One page. ``name`` is its file's, ``uid`` its address in Grafana."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def uid(self) -> str:
        """Fixed, so that links to it stay good."""
        return f"vitrine-{self.name}"


def target(expr: Expr) -> Target:
    """A query whose lines are called by the values of their labels."""
    return Target(expr, " ".join(f"{{{{{label}}}}}" for label in expr.labels))


def quantiles(title: str, unit: str, name: str, **more: object) -> Panel:
    """p50, p90 and p99 of a histogram."""
    lines = tuple(Target(SCOPED.quantile(share, name), f"p{share * 100:g}") for share in QUANTILES)
    return msgspec.structs.replace(Panel(title, unit, lines), **more)


def quantile_by(share: float, title: str, unit: str, name: str, by: Sequence[str], **more: object) -> Panel:
    """One quantile of a histogram, a line for each value of `by`."""
    line = target(SCOPED.quantile(share, name, by))
    return msgspec.structs.replace(Panel(title, unit, (line,)), **more)


def rates(
    title: str,
    unit: str,
    name: str,
    by: Sequence[str] = (),
    how: str = "sum",
    queries: Queries = SCOPED,
    **more: object,
) -> Panel:
    """A counter's rate, a line for each value of `by`."""
    return msgspec.structs.replace(Panel(title, unit, (target(queries.rate(name, by, how)),)), **more)


def gauges(
    title: str,
    unit: str,
    name: str,
    by: Sequence[str] = (),
    how: str = "sum",
    queries: Queries = SCOPED,
    **more: object,
) -> Panel:
    """A gauge, a line for each value of `by`."""
    return msgspec.structs.replace(Panel(title, unit, (target(queries.gauge(name, by, how)),)), **more)


def stat(title: str, unit: str, expr: Expr, **more: object) -> Panel:
    """One number."""
    return msgspec.structs.replace(Panel(title, unit, (Target(expr),), "stat", width=4, height=4), **more)
