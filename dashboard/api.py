"""The pages' data as JSON."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dashboard.audit import note_action
from dashboard.filters import read_query
from dashboard.health import health
from dashboard.pages import overview as overview_page
from dashboard.pages import replicas as replicas_page
from dashboard.pages import request as request_page
from dashboard.pages import requests as requests_page
from dashboard.token_filter import read_token_ids
from dashboard.verdict import wait_spans
from dashboard.web import chosen_window, json_error, json_response, site_of
from telemetry.events import ReplicaState, Stage

MAX_STEPS = 2000
_DEFAULT_STEPS_S = 60.0


def overview(request: Request) -> Response:
    """``GET /api/overview?window=``: the overview's values and its charts' points as columns."""
    site = site_of(request)
    window = chosen_window(request.query_params)
    return json_response(
        {
            "health": health(site.sources.live),
            "overview": overview_page.view(site, window),
            "series": overview_page.points(site, window),
        }
    )


def requests(request: Request) -> Response:
    """``GET /api/requests``: a page of the list; ``cursor`` is "" on the last.

    ``token=12`` or ``token=12,7,9`` narrows it to those with these ids in prompt or answer. Such a page is searched
    for a second at most: it may hold less than ``limit``, or nothing, and yet have a cursor.
    """
    params = dict(request.query_params)
    token_ids = read_token_ids(params.pop("token", ""))
    found = requests_page.find(site_of(request), read_query(params), token_ids)
    return json_response({"requests": found.rows, "cursor": found.cursor})


def request(request: Request) -> Response:
    """``GET /api/requests/{id}``: the record, its sequences with waits and tokens, and the verdict."""
    site = site_of(request)
    view = request_page.view(site, {"id": request.path_params["request_id"]})
    row = view["request"]
    return json_response(
        {
            "request": row,
            "why": view["sentence"],
            "parts": view["parts"],
            "stages": view["waterfall"].lanes,
            "sequences": [
                {
                    **sequence,
                    "wait_spans": wait_spans(sequence),
                    "tokens": request_page.read_tokens(site, row, sequence),
                }
                for sequence in view["sequences"]
            ],
        }
    )


def steps(request: Request) -> Response:
    """``GET /api/steps?since=&until=``: engine steps with their plans, in order of time; by default the last minute."""
    until = _number(request, "until", time.time())
    since = _number(request, "since", until - _DEFAULT_STEPS_S)
    with site_of(request).sources.store.reading() as reader:
        return json_response({"steps": reader.steps(since, until, limit=MAX_STEPS)})


def replicas(request: Request) -> Response:
    """``GET /api/replicas``: replicas and processes as they are now, and what happened."""
    site = site_of(request)
    return json_response({"health": health(site.sources.live), **_fields(replicas_page.view(site))})


def _fields(view: replicas_page.ReplicasView) -> dict[str, object]:
    return {name: getattr(view, name) for name in view.__struct_fields__}


async def reset_cache(request: Request) -> Response:
    """``POST /api/kv/reset``: forget all cached blocks; ``freed_blocks`` per replica.

    503, with those that did, when a ready replica has not answered.
    """
    sources = site_of(request).sources
    ready = {entry.replica for entry in sources.live.replicas() if entry.state is ReplicaState.READY}
    freed = await sources.commands.reset_cache(ready)
    missing = sorted(ready - freed.keys())
    note_action(request, "reset prefix cache", ", ".join(sorted(ready)), f"blocks freed: {freed}")
    if missing or not ready:
        whom = ", ".join(missing) if missing else "no replica is ready"
        message = f"not every prefix cache was reset: {whom}"
        return json_response({"error": {"message": message}, "freed_blocks": freed}, 503)
    return json_response({"freed_blocks": freed})


class LogLevel(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``PUT /api/log-level``."""

    level: Literal["debug", "info", "warning", "error"]
    stage: Stage | None = None


async def set_log_level(request: Request) -> Response:
    """``PUT /api/log-level`` ``{"level": "debug", "stage": "runner"}``: of all processes without a stage.

    Holds until the next start, also for processes that are restarted.
    """
    try:
        body = msgspec.json.decode(await request.body(), type=LogLevel)
    except msgspec.MsgspecError as e:
        raise HTTPException(400, f'the body must be like {{"level": "debug", "stage": "runner"}}: {e}') from e
    done = site_of(request).sources.commands.set_log_level(body.level, str(body.stage or ""))
    note_action(request, "set log level", str(body.stage or "all processes"), body.level if done else "not done")
    if not done:
        return json_error("the supervisor cannot be reached", 503)
    return json_response({"level": body.level, "stage": str(body.stage or "")})


async def metrics(request: Request) -> Response:
    """``GET /metrics``: what telemetry answers; 503 while it is away."""
    answer = await site_of(request).sources.metrics.ask(request.headers.get("accept", ""))
    if answer is None:
        return json_error("telemetry is not answering", 503)
    content_type, body = answer
    return Response(body, headers={"content-type": content_type})


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name, "")
    try:
        return float(text) if text else default
    except ValueError as e:
        raise HTTPException(400, f"{name} must be seconds since the epoch") from e
