"""The supervisor's end of the control plane: a ROUTER socket that every child dials."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
import zmq

from engine.messages import ControlMessage, Hello
from engine.transport import decode_control, encode, quiet
from telemetry.events import Stage

log = structlog.get_logger()


class ControlPlane:
    """Knows which connection belongs to which child; messages of children that have been replaced are dropped."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        quiet(self.socket)
        self.socket.bind(address)
        self._children: dict[bytes, Hello] = {}

    def take(self) -> list[tuple[Hello, ControlMessage]]:
        """All messages that are here now, each with who sent it."""
        taken: list[tuple[Hello, ControlMessage]] = []
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return taken
            message = self._decode(frames)
            if isinstance(message, Hello):
                self._children[frames[0]] = message
            sender = self._children.get(frames[0])
            if sender is not None and message is not None:
                taken.append((sender, message))

    def send(self, stage: Stage, replica: str, incarnation: int, message: ControlMessage) -> None:
        """Send to one child, if it has dialled in."""
        for identity, child in self._children.items():
            if (child.stage, child.replica, child.incarnation) == (stage, replica, incarnation):
                self.socket.send_multipart([identity, encode(message)], zmq.NOBLOCK)

    def broadcast(self, message: ControlMessage) -> None:
        """Send to all children."""
        frame = encode(message)
        for identity in self._children:
            self.socket.send_multipart([identity, frame], zmq.NOBLOCK)

    def forget(self, replica: str, stages: tuple[Stage, ...], incarnation: int) -> None:
        """These children are gone."""
        for identity, child in list(self._children.items()):
            if (child.replica, child.incarnation) == (replica, incarnation) and child.stage in stages:
                del self._children[identity]

    def _decode(self, frames: list[bytes]) -> ControlMessage | None:
        try:
            return decode_control(frames[-1])
        except msgspec.MsgspecError as e:
            log.warning("damaged control message", error=str(e))
            return None
