"""Messages over ZeroMQ: PUSH/PULL for the data plane, DEALER/ROUTER for the control plane.

Sockets have no high-water mark and never block: what may be in flight is bounded by credit at the gateway.
Several messages that are ready together travel as one multipart frame list (`Outbox.send_many`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import zmq

from engine.messages import ControlMessage, DataMessage

_encoder = msgspec.msgpack.Encoder()
_data_decoder = msgspec.msgpack.Decoder(DataMessage)
_control_decoder = msgspec.msgpack.Decoder(ControlMessage)


def encode(message: DataMessage | ControlMessage) -> bytes:
    """A message as MessagePack."""
    return _encoder.encode(message)


def decode_data(frame: bytes) -> DataMessage:
    """Raises msgspec.MsgspecError for anything that is not a data message."""
    return _data_decoder.decode(frame)


def decode_control(frame: bytes) -> ControlMessage:
    """Raises msgspec.MsgspecError for anything that is not a control message."""
    return _control_decoder.decode(frame)


def quiet(socket: zmq.Socket[Any]) -> None:
    """No limits, and no waiting for a peer when the socket is closed."""
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)


class Inbox:
    """The one PULL socket of a process, bound to its address."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.socket = context.socket(zmq.PULL)
        quiet(self.socket)
        self.socket.bind(address)

    def take(self, limit: int = 1000) -> list[DataMessage]:
        """All messages that are here now, without waiting."""
        messages: list[DataMessage] = []
        while len(messages) < limit:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            messages.extend(decode_data(frame) for frame in frames)
        return messages

    def close(self) -> None:
        """Close the socket; messages not taken are lost."""
        self.socket.close()


class Outbox:
    """A PUSH socket to somebody's inbox. Connecting does not wait for the other side to be there."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.address = address
        self._socket = context.socket(zmq.PUSH)
        quiet(self._socket)
        self._socket.connect(address)
        self.sent = 0

    def send(self, message: DataMessage) -> None:
        """Queue one message."""
        self._socket.send(_encoder.encode(message), zmq.NOBLOCK)
        self.sent += 1

    def send_many(self, messages: Iterable[DataMessage]) -> None:
        """Queue several messages as one multipart message, in order."""
        frames = [_encoder.encode(message) for message in messages]
        if frames:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
            self.sent += len(frames)

    def flush_and_close(self, linger_ms: int = 1000) -> None:
        """Close, giving the other side up to `linger_ms` to take what is queued."""
        self._socket.close(linger=linger_ms)
