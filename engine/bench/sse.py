"""Server-sent events, the client's side (WHATWG HTML, section 9.2.6), as far as completion APIs use them."""

from __future__ import annotations


class EventStream:
    """Cuts a stream of bytes into the data of its events, wherever the network cut the bytes.

    Lines end with LF or CR LF. Comments and fields other than ``data`` are passed over; what stands after
    the last blank line when the stream ends is, by the specification, not an event.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes, in order."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
