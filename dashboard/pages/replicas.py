"""``/replicas``: who serves, how they are, and what happened to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dashboard.hub import Events
from dashboard.live import Load, Process
from dashboard.store import StoreAwayError
from dashboard.web import Site, site_of
from engine.messages import ReplicaEntry
from telemetry.events import ReplicaState
from telemetry.queries import Row

EVENTS_SHOWN = 40
LEVELS = {
    ReplicaState.READY: "good",
    ReplicaState.STARTING: "warn",
    ReplicaState.DRAINING: "warn",
    ReplicaState.UNHEALTHY: "bad",
    ReplicaState.STOPPED: "idle",
}


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica."""

    replica: str
    incarnation: int
    state: str
    level: str
    reason: str
    in_state_s: float
    restarts: int
    info: dict[str, Any] | None  # the fields of telemetry.events.ReplicaInfo
    load: Load | None
    processes: list[Process]


class ReplicasView(msgspec.Struct, frozen=True):
    """The page."""

    replicas: list[ReplicaView]
    shared: list[Process]  # processes that belong to no replica
    requests_in_flight: int
    events: list[Row]


def view(site: Site) -> ReplicasView:
    """Everything that the page shows, and ``/api/replicas``."""
    live = site.sources.live
    snapshot = live.snapshot()
    return ReplicasView(
        replicas=[
            _replica(entry, snapshot.loads.get(entry.replica), snapshot.of_replica(entry.replica), snapshot.taken_ns)
            for entry in live.replicas()
        ],
        shared=snapshot.of_replica(""),
        requests_in_flight=snapshot.requests_in_flight,
        events=_events(site),
    )


def _replica(entry: ReplicaEntry, load: Load | None, processes: list[Process], now_ns: int) -> ReplicaView:
    return ReplicaView(
        replica=entry.replica,
        incarnation=entry.incarnation,
        state=entry.state,
        level=LEVELS[entry.state],
        reason=entry.reason,
        in_state_s=max(0.0, (now_ns - entry.since_ns) / 1e9),
        restarts=entry.restarts,
        info=msgspec.structs.asdict(entry.info) if entry.info else None,
        load=load,
        processes=processes,
    )


def _events(site: Site) -> list[Row]:
    try:
        with site.sources.store.reading() as reader:
            return reader.replica_events(limit=EVENTS_SHOWN)
    except StoreAwayError:
        return []


def page(request: Request) -> Response:
    """The page."""
    site = site_of(request)
    return site.page(request, "replicas/page.html", live="page=replicas", view=view(site))


def live(site: Site, _: Mapping[str, str]) -> Events:
    """The cards and the events."""
    now = view(site)
    return {
        "replicas": site.render("replicas/cards.html", view=now),
        "events": site.render("events.html", events=now.events),
    }
