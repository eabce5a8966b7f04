"""``/``: is the service all right, and if not, where does it hurt."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dashboard.history import Sample
from dashboard.hub import Events
from dashboard.objectives import Tile, tiles
from dashboard.series import CHARTS, columns, point_seconds
from dashboard.store import StoreAwayError, slowest
from dashboard.web import WINDOWS, Site, chosen_window, site_of
from telemetry.events import REPLICA_STAGES, Stage, StepKind
from telemetry.queries import Row

_WINDOW_WORDS = {"5m": "last 5 minutes", "15m": "last 15 minutes", "1h": "last hour"}
_NOW_S = 10
"""Utilisation is that of the last seconds: where it hurts now."""
_BUSY_FROM = 0.6
_EVENTS_SHOWN = 6


class StageUse(msgspec.Struct, frozen=True):
    """Share of the last seconds in which a stage worked (of several replicas the busiest)."""

    stage: str
    busy: float


class StepShare(msgspec.Struct, frozen=True):
    """Share of the last seconds spent in steps of one kind, or waiting for a plan (``idle``).

    What the steps achieved, and as a share of the device's measured peak, is None where that is not known.
    """

    kind: str
    share: float
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    flops_share: float | None = None
    bytes_share: float | None = None


class Overview(msgspec.Struct, frozen=True):
    """The page's values; ``latest`` are those of the newest sample, by chart line."""

    window: str
    tiles: list[Tile]
    latest: dict[str, float | None]
    stages: list[StageUse]
    bottleneck: str
    steps: list[StepShare]
    slowest: list[Row]
    events: list[Row]
    has_history: bool
    store_away: bool


def view(site: Site, window: str) -> Overview:
    """Everything but the charts' points."""
    since = time.time() - WINDOWS[window]
    try:
        samples = site.history.since(since)
        with site.sources.store.reading() as reader:
            slow, happened = slowest(reader, since), reader.replica_events(limit=_EVENTS_SHOWN)
    except StoreAwayError:
        return _overview(site, window, [], [], [], store_away=True)
    return _overview(site, window, samples, slow, happened, store_away=False)


def _overview(
    site: Site, window: str, samples: list[Sample], slow: list[Row], events: list[Row], store_away: bool
) -> Overview:
    recent = [values for _, values in samples[-_NOW_S:]]
    stages = [StageUse(stage, _mean(recent, f"busy_{stage}")) for stage in (Stage.GATEWAY, *REPLICA_STAGES)]
    return Overview(
        window=window,
        tiles=tiles(samples, _WINDOW_WORDS[window], site.sources.config),
        latest=_latest(samples),
        stages=stages,
        bottleneck=_bottleneck(stages),
        steps=_step_shares(recent),
        slowest=slow,
        events=events,
        has_history=bool(samples),
        store_away=store_away,
    )


def _latest(samples: Sequence[Sample]) -> dict[str, float | None]:
    values = samples[-1][1] if samples else {}
    return {line.key: values.get(line.sample) for chart in CHARTS for line in chart.lines}


def _mean(recent: Sequence[dict[str, Any]], key: str) -> float:
    return sum(values.get(key) or 0.0 for values in recent) / len(recent) if recent else 0.0


def _bottleneck(stages: list[StageUse]) -> str:
    busiest = max(stages, key=lambda use: use.busy)
    if busiest.busy >= _BUSY_FROM:
        return busiest.stage
    return ""


def _step_shares(recent: Sequence[dict[str, Any]]) -> list[StepShare]:
    latest = recent[-1] if recent else {}
    achieved = StepShare.__struct_fields__[2:]
    kinds = [
        StepShare(kind, min(1.0, _mean(recent, f"{kind}_step_s")), *(latest.get(f"{kind}_{name}") for name in achieved))
        for kind in StepKind
    ]
    return [*kinds, StepShare("idle", min(1.0, _mean(recent, "idle_s")))]


def points(site: Site, window: str, last_s: int | None = None) -> dict[str, list[float | None]]:
    """The charts' columns over a window, or over its last seconds. Empty columns while the store is away."""
    length = WINDOWS[window]
    step = point_seconds(length)
    since = time.time() - (last_s or length)
    try:
        samples = site.history.since(since - since % step)
    except StoreAwayError:
        samples = []
    return columns(samples, length)


def page(request: Request) -> Response:
    """The page."""
    site = site_of(request)
    window = chosen_window(request.query_params)
    return site.page(
        request,
        "overview/page.html",
        live=f"page=overview&window={window}",
        view=view(site, window),
        charts=CHARTS,
        window_seconds=WINDOWS[window],
        api_port=site.sources.config.port,
        model=site.sources.model,
    )


def live(site: Site, params: Mapping[str, str]) -> Events:
    """Tiles, legends, utilisation, lists, and the newest points."""
    window = chosen_window(params)
    now = view(site, window)
    legends = {f"legend-{c.id}": site.render("overview/legend.html", chart=c, view=now) for c in CHARTS}
    newest = points(site, window, last_s=2 * point_seconds(WINDOWS[window]))
    return {
        "tiles": site.render("overview/tiles.html", view=now),
        "stages": site.render("overview/stages.html", view=now),
        "slowest": site.render("overview/slowest.html", view=now, window=window),
        "events": site.render("events.html", events=now.events),
        "points": msgspec.json.encode(newest).decode(),
        **legends,
    }
