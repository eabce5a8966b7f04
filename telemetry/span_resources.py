"""Whose spans they are: one resource per process of the system."""

from __future__ import annotations

import socket
from importlib.metadata import version

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from telemetry.events import Stage
from telemetry.journal import JournalOwner

SCOPE = InstrumentationScope("vitrine.telemetry")
MAX_LINKS = 128

_FROM_ENVIRONMENT = OTELResourceDetector().detect()
"""``OTEL_RESOURCE_ATTRIBUTES``. What tells stages apart stays ours, ``OTEL_SERVICE_NAME`` included."""


class Resources:
    """One resource per process, so that tracing tools tell the stages apart."""

    def __init__(self) -> None:
        self._pids: dict[tuple[str, str, int], int] = {}
        self._made: dict[tuple[str, str, int], Resource] = {}

    def know(self, owner: JournalOwner) -> None:
        """A process is there."""
        self._pids[owner.stage, owner.replica, owner.incarnation] = owner.pid

    def of(self, stage: Stage, replica: str, incarnation: int) -> Resource:
        """The resource of a process; its pid is left out where it never was known."""
        key = (stage, replica, incarnation)
        if key not in self._made:
            parts = [replica, str(stage), str(self._pids.get(key, ""))]
            self._made[key] = _FROM_ENVIRONMENT.merge(
                Resource(
                    {
                        "service.name": f"vitrine-{stage}",
                        "service.namespace": "vitrine",
                        "service.instance.id": "/".join(part for part in parts if part),
                        "service.version": version("vitrine"),
                        "host.name": socket.gethostname(),
                    }
                )
            )
        return self._made[key]
