"""The gateway's links to the replicas: where to send, what is in flight there, and the gauges of each link.

A link belongs to one incarnation of a replica and ends with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import zmq

from engine.gateway.credit import Credit
from engine.messages import DataMessage, ReplicaEntry
from engine.run_folder import process_name
from engine.transport import Outbox
from telemetry.events import ReplicaState, Stage
from telemetry.gauges import SUFFIX as GAUGES_SUFFIX
from telemetry.gauges import Gauge, GaugePage, PageOwner


class ReplicaLink:
    """One incarnation of a replica, as the gateway sees it."""

    def __init__(
        self, context: zmq.Context[Any], gauges_folder: Path, gateway: int, entry: ReplicaEntry, credit: Credit
    ) -> None:
        self.replica = entry.replica
        self.incarnation = entry.incarnation
        self.ready = entry.state is ReplicaState.READY
        self.credit = credit
        self._outbox = Outbox(context, entry.inboxes[Stage.TOKENIZER])
        self._folder = gauges_folder
        self._peer = f"{entry.replica}.{entry.incarnation}"
        name = process_name(Stage.GATEWAY, "", gateway, self._peer)
        owner = PageOwner(Stage.GATEWAY, "", gateway, os.getpid(), self._peer)
        self._page = GaugePage(gauges_folder / (name + GAUGES_SUFFIX), owner)

    @property
    def key(self) -> tuple[str, int]:
        """(replica, incarnation)."""
        return self.replica, self.incarnation

    def send(self, message: DataMessage) -> None:
        """Send to the replica's tokenizer."""
        self._outbox.send(message)
        self._page.add(Gauge.SENT_TOKENIZER)

    def note_taken(self) -> None:
        """A message from this replica was taken out of the inbox."""
        self._page.add(Gauge.TAKEN)

    def beat(self) -> None:
        """Stamp the link's page."""
        self._page.beat()

    def close(self) -> None:
        """The incarnation is gone: close the socket, remove the link's page and those of earlier gateways."""
        self._outbox.flush_and_close(linger_ms=0)
        self._page.close()
        for path in self._folder.glob(f"{Stage.GATEWAY}.*-{self._peer}{GAUGES_SUFFIX}"):
            path.unlink(missing_ok=True)
