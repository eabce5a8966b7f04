"""What operators command: sent to the supervisor, and answered by replicas."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from engine.messages import CacheReset, ControlMessage, ResetCache, SetLogLevel

ANSWER_S = 5.0
"""How long replicas may take to answer: a scheduler takes messages between two steps."""


class Commands:
    """Asks, and puts the answers together. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._send: Callable[[ControlMessage], None] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[CacheReset]] = {}

    def connect(self, send: Callable[[ControlMessage], None]) -> None:
        """From now on there is a line to the supervisor."""
        self._send = send

    async def reset_cache(self, replicas: set[str]) -> dict[str, int]:
        """Reset the prefix caches; returns the blocks freed by each of `replicas` that has answered in time."""
        if self._send is None:
            return {}
        question = next(self._numbers)
        answers = self._waiting[question] = asyncio.Queue()
        freed: dict[str, int] = {}
        try:
            self._send(ResetCache(question))
            async with asyncio.timeout(ANSWER_S):
                while not replicas <= freed.keys():
                    answer = await answers.get()
                    freed[answer.replica] = answer.blocks
        except TimeoutError:
            pass  # who has not answered is missing in what is returned
        finally:
            del self._waiting[question]
        return freed

    def set_log_level(self, level: str, stage: str) -> bool:
        """Of one stage's processes, or ("") of all; False while there is no line to the supervisor."""
        if self._send is None:
            return False
        self._send(SetLogLevel(level, stage))
        return True

    def on_answer(self, answer: CacheReset) -> None:
        """A replica has answered; late answers are dropped."""
        if answer.question in self._waiting:
            self._waiting[answer.question].put_nowait(answer)
