"""What operators did: an entry in the store for every action, and a line in the log."""

from __future__ import annotations

import structlog
from starlette.requests import Request

from dashboard.store import StoreAwayError
from dashboard.web import site_of

log = structlog.get_logger()


def note_action(request: Request, action: str, target: str, result: str) -> None:
    """Record who did what, to what, and what came of it. The action stands even where the store is away."""
    who = request.client.host if request.client else "unknown"
    log.info("operator's action", who=who, action=action, target=target, result=result)
    try:
        with site_of(request).sources.store.reading() as reader:
            reader.append_audit(who, action, target, result)
    except StoreAwayError:
        log.warning("an operator's action is missing in the audit log: the store is away", action=action)
