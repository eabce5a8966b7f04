from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from dashboard.hub import Events, Hub, TooManyViewersError, Viewer


@contextlib.asynccontextmanager
async def running(hub: Hub) -> AsyncIterator[None]:
    task = asyncio.create_task(hub.run())
    yield
    task.cancel()


class Counter:
    """Renders a number that grows, beside a text that stays."""

    def __init__(self) -> None:
        self.rendered = 0

    def __call__(self) -> Events:
        self.rendered += 1
        return {"n": str(self.rendered), "same": "text"}


async def take(viewer: Viewer, number: int) -> list[Events]:
    taken: list[Events] = []
    async for events in viewer.events():
        taken.append(events)
        if len(taken) == number:
            break
    return taken


async def test_a_topic_is_rendered_once_for_all_its_viewers() -> None:
    hub, render = Hub(tick_s=0.05), Counter()
    viewers = [hub.join("a", render) for _ in range(20)]
    async with running(hub):
        taken = await asyncio.gather(*(take(viewer, 3) for viewer in viewers))
    assert all(events == taken[0] for events in taken)
    assert render.rendered <= 4


async def test_only_what_changed_is_sent() -> None:
    hub = Hub(tick_s=0.05)
    viewer = hub.join("a", Counter())
    async with running(hub):
        start, first, second = await take(viewer, 3)
    assert (start, first, second) == ({}, {"n": "1", "same": "text"}, {"n": "2"})


async def test_a_late_viewer_gets_the_whole_state_at_once() -> None:
    hub = Hub(tick_s=0.05)
    async with running(hub):
        await take(hub.join("a", Counter()), 3)
        (state,) = await take(hub.join("a", Counter()), 1)
    assert set(state) == {"n", "same"}


async def test_a_viewer_that_does_not_keep_up_is_dropped_and_holds_nobody_up() -> None:
    hub = Hub(tick_s=0.01, queue_limit=3)
    slow, quick = hub.join("a", Counter()), hub.join("a", Counter())
    async with running(hub):
        await take(quick, 8)
        assert slow.dropped
        assert [events async for events in slow.events()] == []
    assert (hub.viewers, hub.dropped_viewers) == (1, 1)


async def test_nobody_looking_costs_nothing() -> None:
    hub, render = Hub(tick_s=0.01), Counter()
    viewer = hub.join("a", render)
    async with running(hub):
        await take(viewer, 2)
        hub.leave("a", viewer)
        seen = render.rendered
        await take(hub.join("b", Counter()), 4)
    assert render.rendered <= seen + 1


async def test_one_broken_topic_leaves_the_others_running() -> None:
    hub = Hub(tick_s=0.01)
    hub.join("broken", lambda: {"x": str(1 // 0)})
    async with running(hub):
        assert len(await take(hub.join("a", Counter()), 3)) == 3


async def test_close_ends_every_stream() -> None:
    hub = Hub(tick_s=0.01)
    viewer = hub.join("a", Counter())
    hub.close()
    assert [events async for events in viewer.events()] == []
    assert [events async for events in hub.join("a", Counter()).events()] == []


def test_streams_are_limited() -> None:
    def joined(hub: Hub) -> Iterator[Viewer]:
        for i in count():
            yield hub.join(str(i), Counter())

    hub = Hub(max_viewers=3)
    with pytest.raises(TooManyViewersError):
        list(joined(hub))
    assert hub.viewers == 3
