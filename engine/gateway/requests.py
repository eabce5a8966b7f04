"""The state of one request: what came from the engine, what was delivered, and its one terminal.

Whoever learns something (an increment, a failure, that the client left) says so here and wakes the writer of
the response. The writer alone ends the request, with `finish`, so there is one terminal and never two; of
several reasons known by then error wins over abort over length over stop.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from engine.gateway.errors import ApiError, internal_error
from engine.messages import Increment
from engine.process import Journal
from telemetry.events import FinishReason, FirstIncrement, RequestFinished, SequenceDelivered

_ASCENDING = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR)

_TOKEN_ID_BYTES = 8

CLIENT_GONE = "client_disconnected"
SLOW_READER = "slow_reader"
_ABORT_MESSAGES = {
    CLIENT_GONE: "the client closed the connection",
    SLOW_READER: "the client read too slowly",
}


class Piece(msgspec.Struct):
    """News of one sequence for the client: all increments since the last piece, put together.

    ``prompt_token_ids`` and ``cached_tokens`` come with the sequence's first piece.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_token_ids: list[int] | None
    cached_tokens: int


class _Sequence:
    """What is known of one sequence, and what of it has not been taken yet."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.prompt_token_ids: list[int] | None = None
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.delivered_tokens = 0
        self.has_news = False

    def add(self, increment: Increment) -> None:
        self.has_news = True
        self.texts.append(increment.text)
        self.token_ids.extend(increment.token_ids)
        if increment.prompt_token_ids is not None:
            self.prompt_token_ids = increment.prompt_token_ids
            self.cached_tokens = increment.cached_tokens
        self.finish_reason = increment.finish_reason
        self.stop_reason = increment.stop_reason

    def take(self) -> Piece:
        piece = Piece(
            self.index,
            "".join(self.texts),
            self.token_ids,
            self.finish_reason,
            self.stop_reason,
            self.prompt_token_ids,
            self.cached_tokens,
        )
        self.delivered_tokens += len(self.token_ids)
        self.texts, self.token_ids, self.prompt_token_ids, self.has_news = [], [], None, False
        return piece


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
        self._sequences: list[_Sequence] = []
        self._unfinished = 0
        self._wakes_on_news = False
        self._wake = asyncio.Event()

    def expect(self, num_sequences: int, stream: bool) -> None:
        """The request is a good one, with so many sequences. Only a stream is woken before the end."""
        self._wakes_on_news = stream
        self._sequences = [_Sequence(i) for i in range(num_sequences)]
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
        sequence.add(increment)
        self.pending_bytes += len(increment.text) + _TOKEN_ID_BYTES * len(increment.token_ids)
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

    def restart(self) -> None:
        """Forget what came, to run the request again. Raises RuntimeError when some of it was written."""
        if self.committed or self.finished:
            raise RuntimeError(f"{self.request_id} has been answered in part")
        self.pending_bytes = 0
        self.expect(len(self._sequences), self._wakes_on_news)

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
