"""What the pages read, put together once per process (or per test)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import msgspec

from dashboard.commands import Commands
from dashboard.live import Live
from dashboard.store import Store
from engine.config import Config


class MetricsSource(Protocol):
    """Whoever answers for ``GET /metrics``."""

    def ask(self, accept: str) -> Awaitable[tuple[str, bytes] | None]:
        """Content type and body, or None while telemetry is away."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a page may ask."""

    config: Config
    machine: str  # this host's name
    run_id: str
    model: str  # name of the model served
    model_path: str  # folder of the model served
    store: Store
    live: Live
    metrics: MetricsSource
    commands: Commands
