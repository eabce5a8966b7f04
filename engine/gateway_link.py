"""A replica stage's way to the gateway, and the rule by which work of a dead gateway is dropped."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import DataMessage, Directory
from engine.process import SyncStage
from engine.transport import Outbox
from telemetry.events import Stage
from telemetry.gauges import Gauge


class GatewayLink:
    """Sends to the living gateway; `is_stale` tells what belongs to one that is gone.

    A new gateway has the same address and a higher incarnation. It may be heard of from the directory or from
    its own first message, whichever comes first; then a new socket is opened, since the old one may still
    hold messages for the dead one, and the count of messages sent starts again with the gateway's own.
    """

    def __init__(self, stage: SyncStage) -> None:
        self._stage = stage
        self._incarnation = 0  # of the living gateway; while there is none, of the next one
        self._outbox = self._open()

    def on_directory(self, directory: Directory) -> None:
        """Learn from the directory who lives."""
        if directory.gateway == 0 and self._incarnation > 0:
            self._advance(self._incarnation + 1)
        self._advance(directory.gateway)

    def is_stale(self, gateway: int) -> bool:
        """Whether the gateway of that incarnation, named in a message, is gone."""
        self._advance(gateway)
        return gateway < self._incarnation

    def send(self, messages: Sequence[DataMessage]) -> None:
        """Queue messages, in order."""
        self._outbox.send_many(messages)
        self._stage.gauges.add(Gauge.SENT_GATEWAY, len(messages))

    def _advance(self, incarnation: int) -> None:
        if incarnation <= self._incarnation:
            return
        self._incarnation = incarnation
        self._outbox.flush_and_close(linger_ms=0)
        self._outbox = self._open()
        self._stage.gauges.set(Gauge.SENT_GATEWAY, 0)

    def _open(self) -> Outbox:
        return Outbox(self._stage.context.zmq, self._stage.outbox_address(Stage.GATEWAY))
