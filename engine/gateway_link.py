"""A replica stage's way to the gateway, and the rule by which work of a dead gateway is dropped."""

from __future__ import annotations

from collections.abc import Sequence

from engine.gateway_watch import GatewayWatch
from engine.messages import DataMessage, Directory
from engine.process import SyncStage
from engine.transport import Outbox
from telemetry.events import Stage
from telemetry.gauges import Gauge


class GatewayLink:
    """Sends to the living gateway; `is_stale` tells what belongs to one that is gone.

    A new gateway has the same address and a higher incarnation. When the old one is known to be dead a new
    socket is opened, since the old one may still hold messages for it, and the count of messages sent starts
    again with the new gateway's own.
    """

    def __init__(self, stage: SyncStage) -> None:
        self._stage = stage
        self._watch = GatewayWatch()
        self._outbox = self._open()

    def on_directory(self, directory: Directory) -> None:
        """Learn from the directory who lives."""
        dead_before = self._watch.dead_up_to
        self._watch.directory_says(directory.gateway)
        self._reopen_if_died(dead_before)

    def is_stale(self, gateway: int) -> bool:
        """Whether the gateway of that incarnation, named in a message, is gone."""
        dead_before = self._watch.dead_up_to
        accepted = self._watch.accepts(gateway)
        self._reopen_if_died(dead_before)
        return not accepted

    def send(self, messages: Sequence[DataMessage]) -> None:
        """Queue messages, in order."""
        self._outbox.send_many(messages)
        self._stage.gauges.add(Gauge.SENT_GATEWAY, len(messages))

    def _reopen_if_died(self, dead_before: int) -> None:
        if self._watch.dead_up_to == dead_before:
            return
        self._outbox.flush_and_close(linger_ms=0)
        self._outbox = self._open()
        self._stage.gauges.set(Gauge.SENT_GATEWAY, 0)

    def _open(self) -> Outbox:
        return Outbox(self._stage.context.zmq, self._stage.outbox_address(Stage.GATEWAY))
