"""The state of one request: what came from the engine, what was delivered, and its one terminal.

Whoever learns something (an increment, a failure, that the client left) says so here and wakes the writer of
the response. The writer alone ends the request, with `finish`, so there is one terminal and never two; of
several reasons known by then error wins over abort over length over stop.
"""

from __future__ import annotations

import asyncio
import time

from engine.gateway.errors import ApiError, deadline_exceeded, internal_error
from engine.gateway.pieces import Piece, SequenceNews, pending_bytes, without_answer
from engine.messages import Increment
from engine.process import Journal
from telemetry.events import FinishReason, FirstIncrement, RequestFinished, SequenceDelivered

_ASCENDING = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR)

CLIENT_GONE = "client_disconnected"
SLOW_READER = "slow_reader"
_ABORT_MESSAGES = {
    CLIENT_GONE: "the client closed the connection",
    SLOW_READER: "the client read too slowly",
}


class RequestState:
    """One request from the moment it arrived. Belongs to the event loop's thread."""

    def __init__(self, request_id: str, journal: Journal) -> None:
        self.request_id = request_id
        self.failure: ApiError | None = None
        self.abort_reason = ""
        self.committed = False  # something was written: the request cannot be run again elsewhere
        self.finished = False
        self.first_increment_ns = 0
        self.pending_bytes = 0  # what was offered and not taken, roughly
        self._journal = journal
        self._sequences: list[SequenceNews] = []
        self._unfinished = 0
        self._wakes_on_news = False
        self._prompt_only = False
        self._wake = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    def expect(self, num_sequences: int, stream: bool, prompt_only: bool = False) -> None:
        """The request is a good one, with so many sequences. Only a stream is woken before the end.

        With `prompt_only` no token of an answer is passed on.
        """
        self._wakes_on_news = stream
        self._prompt_only = prompt_only
        self._sequences = [SequenceNews(i) for i in range(num_sequences)]
        self._unfinished = num_sequences

    @property
    def num_sequences(self) -> int:
        """How many sequences the request has; 0 for one that was refused."""
        return len(self._sequences)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        all_finished = bool(self._sequences) and not self._unfinished
        return self.failure is not None or bool(self.abort_reason) or all_finished

    @property
    def outcome(self) -> FinishReason:
        """The reason for the end, as far as it is known (STOP while nothing is)."""
        if self.failure is not None:
            return FinishReason.ERROR
        if self.abort_reason:
            return FinishReason.ABORT
        reasons = [s.finish_reason for s in self._sequences if s.finish_reason]
        return max(reasons, key=_ASCENDING.index, default=FinishReason.STOP)

    # --- events

    def offer(self, increment: Increment) -> None:
        """The engine has news. Ignored when the request is over or its sequence is."""
        if self.finished or self.over or not 0 <= increment.index < len(self._sequences):
            return
        sequence = self._sequences[increment.index]
        if sequence.finish_reason is not None:
            return
        if increment.finish_reason is FinishReason.ERROR:
            self.fail(internal_error(increment.error or "the engine failed", "engine_error"))
            return
        self._note_first()
        if self._prompt_only:
            increment = without_answer(increment)
        sequence.add(increment)
        self.pending_bytes += pending_bytes(increment)
        self._unfinished -= increment.finish_reason is not None
        if self._wakes_on_news or not self._unfinished:
            self._wake.set()

    def fail(self, error: ApiError) -> None:
        """The request ends with an error; of several, the first is told."""
        if self.finished or self.failure is not None:
            return
        self.failure = error
        self._wake.set()

    def abort(self, reason: str) -> None:
        """The client is gone, or is sent away."""
        if self.finished or self.abort_reason:
            return
        self.abort_reason = reason
        self._wake.set()

    def set_deadline(self, timeout_s: float, since_ns: int) -> None:
        """The request fails if it has not ended so long after `since_ns` (monotonic)."""
        left_s = timeout_s - (time.monotonic_ns() - since_ns) / 1e9
        error = deadline_exceeded(timeout_s)
        self._deadline = asyncio.get_running_loop().call_later(max(left_s, 0), self.fail, error)

    def restart(self) -> None:
        """Forget what came, to run the request again. Raises RuntimeError when some of it was written."""
        if self.committed or self.finished:
            raise RuntimeError(f"{self.request_id} has been answered in part")
        self.pending_bytes = 0
        self.expect(len(self._sequences), self._wakes_on_news, self._prompt_only)

    def _note_first(self) -> None:
        if not self.first_increment_ns:
            self.first_increment_ns = time.monotonic_ns()
            self._journal.append(FirstIncrement(self.request_id, self.first_increment_ns))

    # --- the writer's side

    async def wait(self) -> None:
        """Wait for news (streams) or for the end."""
        while not self.over and not (self._wakes_on_news and self.pending_pieces):
            self._wake.clear()
            await self._wake.wait()

    @property
    def pending_pieces(self) -> bool:
        """Whether `take` would give something."""
        return any(sequence.has_news for sequence in self._sequences)

    def take(self) -> list[Piece]:
        """All news since the last call, one piece per sequence, by index. They count as delivered."""
        self.pending_bytes = 0
        return [sequence.take() for sequence in self._sequences if sequence.has_news]

    def finish(self, http_status: int) -> None:
        """Journal the terminal. `http_status` is what the client saw, 0 when it left before the headers.

        Raises RuntimeError at a second call, and when the request is not over.
        """
        if self.finished or not self.over:
            raise RuntimeError(f"{self.request_id} {'has ended already' if self.finished else 'still runs'}")
        self.finished = True
        if self._deadline is not None:
            self._deadline.cancel()
        error_type, message = self._blame()
        self._journal.append(
            RequestFinished(
                request_id=self.request_id,
                at_ns=time.monotonic_ns(),
                finish_reason=self.outcome,
                http_status=http_status,
                error_type=error_type,
                error_message=message,
                sequences=[
                    SequenceDelivered(s.index, s.finish_reason or self.outcome, s.delivered_tokens)
                    for s in self._sequences
                ],
            )
        )

    def _blame(self) -> tuple[str, str]:
        """(error type, message) for the record; two empty strings when all went well."""
        if self.failure is not None:
            return self.failure.error_type, self.failure.message
        return self.abort_reason, _ABORT_MESSAGES.get(self.abort_reason, "")
