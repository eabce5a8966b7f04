"""Live fragments: rendered once per tick and topic, fanned out to all viewers of that topic.

A topic is what one page shows (page and filters). It is rendered only while somebody looks. Viewers have
bounded queues; one that does not keep up is dropped, and its browser dials in again and gets the whole state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import anyio.to_thread
import structlog

Events = dict[str, str]
"""Event name → data, as one topic renders it."""

log = structlog.get_logger()


class TooManyViewersError(Exception):
    """The limit on open streams is reached."""


class Viewer:
    """One open stream."""

    def __init__(self, limit: int) -> None:
        self._queue: asyncio.Queue[Events | None] = asyncio.Queue(limit)
        self.dropped = False

    def offer(self, events: Events) -> bool:
        """Queue events; False when the viewer has fallen behind and is to be dropped."""
        try:
            self._queue.put_nowait(events)
        except asyncio.QueueFull:
            return False
        return True

    def end(self) -> None:
        """Close the stream; what is queued is no longer sent."""
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def events(self) -> AsyncIterator[Events]:
        """What to send, until the stream is ended."""
        while (events := await self._queue.get()) is not None:
            yield events


class _Topic:
    def __init__(self, render: Callable[[], Events]) -> None:
        self.render = render
        self.viewers: set[Viewer] = set()
        self.last: Events = {}


class Hub:
    """All topics with somebody looking."""

    def __init__(self, tick_s: float = 1.0, queue_limit: int = 16, max_viewers: int = 64) -> None:
        self.tick_s = tick_s
        self.dropped_viewers = 0
        self._queue_limit = queue_limit
        self._max_viewers = max_viewers
        self._topics: dict[str, _Topic] = {}
        self._closed = False

    @property
    def viewers(self) -> int:
        """Open streams."""
        return sum(len(topic.viewers) for topic in self._topics.values())

    def join(self, key: str, render: Callable[[], Events]) -> Viewer:
        """Open a stream on a topic. `render` is used if the topic is new. Raises TooManyViewersError."""
        if self.viewers >= self._max_viewers:
            raise TooManyViewersError
        topic = self._topics.setdefault(key, _Topic(render))
        viewer = Viewer(self._queue_limit)
        topic.viewers.add(viewer)
        viewer.offer(topic.last)
        if self._closed:
            viewer.end()
        return viewer

    def leave(self, key: str, viewer: Viewer) -> None:
        """A stream has ended. A topic nobody looks at is forgotten."""
        topic = self._topics.get(key)
        if topic is None:
            return
        topic.viewers.discard(viewer)
        if not topic.viewers:
            del self._topics[key]

    async def run(self) -> None:
        """Render and fan out, once per tick, for ever."""
        while True:
            started = time.monotonic()
            for key in list(self._topics):
                await self._tick(key)
            await asyncio.sleep(max(0.05, self.tick_s - (time.monotonic() - started)))

    def close(self) -> None:
        """End all streams, and every one that is still opened."""
        self._closed = True
        for topic in self._topics.values():
            for viewer in topic.viewers:
                viewer.end()

    async def _tick(self, key: str) -> None:
        topic = self._topics.get(key)
        if topic is None or self._closed:
            return
        try:
            events = await anyio.to_thread.run_sync(topic.render)
        except Exception:
            log.exception("a live fragment could not be rendered", topic=key)
            return
        news = {name: data for name, data in events.items() if topic.last.get(name) != data}
        topic.last = events
        for viewer in list(topic.viewers):
            if not self._closed and not viewer.offer(news):
                self._drop(key, viewer)

    def _drop(self, key: str, viewer: Viewer) -> None:
        self.dropped_viewers += 1
        viewer.dropped = True
        viewer.end()
        self.leave(key, viewer)
        log.info("dropped a viewer that did not keep up", topic=key)
