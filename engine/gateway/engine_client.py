"""The gateway's side of the engine: sends requests to replicas and takes in what comes back.

A request *holds* credit on its replica from the moment it is sent until the replica has answered for all its
sequences (or refused it, or is lost). That may be later than the end of the request itself: after an abort
the client is gone at once, and the replica still has to let go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
import zmq

from engine.config import Config
from engine.gateway.credit import Credit
from engine.gateway.errors import ApiError, overloaded, unavailable
from engine.gateway.replica_links import ReplicaLink
from engine.gateway.requests import RequestState
from engine.gateway.router import choose
from engine.messages import (
    Abort,
    DataMessage,
    Directory,
    IdsReply,
    IdsToText,
    Increment,
    Increments,
    Refused,
    ReplicaEntry,
    Submit,
    TextReply,
    TextToIds,
)
from engine.process import Journal
from telemetry.events import ReplicaState, RequestRouted
from telemetry.gauges import Gauge, GaugePage

Question = TextToIds | IdsToText
Answer = IdsReply | TextReply
SomeAnswer = TypeVar("SomeAnswer", IdsReply, TextReply)

_ALIVE = (ReplicaState.READY, ReplicaState.DRAINING)
_MAX_ATTEMPTS = 2


class _Hold:
    """What a replica still has of a request. ``state`` is None once the request ended without it."""

    def __init__(self, link: ReplicaLink, submit: Submit, state: RequestState, tokens: int, sequences: int) -> None:
        self.link = link
        self.submit = submit
        self.state: RequestState | None = state
        self.tokens = tokens
        self.open = set(range(sequences))
        self.attempt = 1


class _Question:
    """A question about tokens that a replica has not answered yet."""

    def __init__(self, link: ReplicaLink, answer: asyncio.Future[Answer]) -> None:
        self.link = link
        self.answer = answer


class EngineClient:
    """All replicas, and all that is in flight there. Belongs to the event loop's thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        gauges_folder: Path,
        gateway: int,
        config: Config,
        journal: Journal,
        gauges: GaugePage,
    ) -> None:
        self.directory = Directory(gateway, "", [])
        self.gateway = gateway
        self._context = context
        self._gauges_folder = gauges_folder
        self._config = config
        self._journal = journal
        self._gauges = gauges
        self._links: dict[tuple[str, int], ReplicaLink] = {}
        self._holds: dict[str, _Hold] = {}
        self._questions: dict[str, _Question] = {}
        self._log: Any = structlog.get_logger()

    @property
    def any_ready(self) -> bool:
        """Whether there is a replica that takes requests."""
        return any(link.ready for link in self._links.values())

    # --- from the clients' side

    def submit(self, state: RequestState, submit: Submit, tokens: int, sequences: int) -> None:
        """Send a request to the best replica. `tokens` is its estimate. Raises ApiError (429, 503)."""
        link = self._route(submit.request_id, tokens, attempt=1)
        self._place(_Hold(link, submit, state, tokens, sequences))

    def leave(self, state: RequestState) -> None:
        """A request has ended: whatever a replica still has of it is aborted there."""
        hold = self._holds.get(state.request_id)
        if hold is not None and hold.state is not None:
            hold.state = None
            hold.link.send(Abort(state.request_id, self.gateway))

    async def ask(self, question: Question, kind: type[SomeAnswer]) -> SomeAnswer:
        """Ask any ready replica's tokenizer, for an answer of type `kind`.

        Raises ApiError (the tokenizer's own, 429, 503), and TypeError for another answer.
        """
        if len(self._questions) >= self._config.max_queue:
            raise overloaded("too many questions about tokens at once; try again later")
        link = choose(self._links.values(), 0).link
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._questions[question.request_id] = _Question(link, answer)
        link.send(question)
        try:
            reply = await answer
        finally:
            self._questions.pop(question.request_id, None)
        if not isinstance(reply, kind):
            raise TypeError(f"{type(reply).__name__} answers {type(question).__name__}")
        return reply

    def fail_questions(self, error: ApiError) -> None:
        """End all questions with an error."""
        for question in self._questions.values():
            _settle(question.answer, error)

    # --- from the engine's side

    def on_messages(self, messages: Sequence[DataMessage]) -> None:
        """Everything that came into the inbox, in order."""
        for message in messages:
            match message:
                case Increments():
                    self._on_increments(message)
                case Refused() | IdsReply() | TextReply() if message.gateway == self.gateway:
                    self._on_reply(message)
                case Refused() | IdsReply() | TextReply():
                    pass  # an earlier gateway asked
                case _:
                    self._log.warning("unexpected message", message=type(message).__name__)

    def on_directory(self, directory: Directory) -> None:
        """Open links to new incarnations; end what was in flight on those that are gone."""
        self.directory = directory
        alive = {(e.replica, e.incarnation): e for e in directory.replicas if e.state in _ALIVE}
        lost = [self._links.pop(key) for key in list(self._links) if key not in alive]
        for key, entry in alive.items():
            if key not in self._links:
                self._links[key] = self._open(entry)
            self._links[key].ready = entry.state is ReplicaState.READY
        for link in lost:
            self._lose(link)

    def beat(self) -> None:
        """Stamp the pages of all links."""
        for link in self._links.values():
            link.beat()

    def close(self) -> None:
        """Close all links; what is in flight stays unanswered."""
        self._holds.clear()
        for link in self._links.values():
            link.close()
        self._links.clear()

    # --- holds

    def _route(self, request_id: str, tokens: int, attempt: int) -> ReplicaLink:
        choice = choose(self._links.values(), tokens)
        link = choice.link
        self._journal.append(
            RequestRouted(
                request_id=request_id,
                at_ns=time.monotonic_ns(),
                attempt=attempt,
                replica=link.replica,
                incarnation=link.incarnation,
                candidates=choice.candidates,
                reason=choice.reason if attempt == 1 else f"retry, {choice.reason}",
            )
        )
        return link

    def _place(self, hold: _Hold) -> None:
        hold.link.credit.take(hold.tokens)
        self._holds[hold.submit.request_id] = hold
        self._show()
        hold.link.send(hold.submit)

    def _release(self, hold: _Hold) -> None:
        hold.link.credit.give_back(hold.tokens)
        del self._holds[hold.submit.request_id]
        self._show()

    def _show(self) -> None:
        self._gauges.set(Gauge.REQUESTS_IN_FLIGHT, len(self._holds))
        self._gauges.set(Gauge.TOKENS_IN_FLIGHT, sum(link.credit.tokens for link in self._links.values()))

    def _on_increments(self, message: Increments) -> None:
        link = self._links.get((message.replica, message.incarnation))
        if link is None:
            return  # from an incarnation that is gone: what was in flight there has been ended
        link.note_taken()
        for item in message.items:
            hold = self._holds.get(item.request_id)
            if hold is not None and hold.link is link and item.gateway == self.gateway:
                self._on_increment(hold, item)

    def _on_increment(self, hold: _Hold, item: Increment) -> None:
        if hold.state is not None:
            hold.state.offer(item)
        if item.finish_reason is not None:
            hold.open.discard(item.index)
            if not hold.open:
                self._release(hold)

    def _on_reply(self, message: Refused | Answer) -> None:
        question = self._questions.get(message.request_id)
        if question is not None:
            question.link.note_taken()
            _settle(question.answer, message)
            return
        hold = self._holds.get(message.request_id)
        if hold is not None and isinstance(message, Refused):
            hold.link.note_taken()
            if hold.state is not None:
                hold.state.fail(_refusal(message))
            self._release(hold)

    # --- replicas coming and going

    def _open(self, entry: ReplicaEntry) -> ReplicaLink:
        credit = Credit(self._config.max_queue, self._config.max_tokens_in_flight)
        return ReplicaLink(self._context, self._gauges_folder, self.gateway, entry, credit)

    def _lose(self, link: ReplicaLink) -> None:
        holds = [hold for hold in self._holds.values() if hold.link is link]
        for hold in holds:
            self._release(hold)
            if hold.state is not None and not hold.state.over:
                self._retry_or_fail(hold, hold.state)
        for question in self._questions.values():
            if question.link is link:
                _settle(question.answer, _lost_error(link))
        if holds:
            self._log.warning("replica lost", lost=link.replica, lost_incarnation=link.incarnation, requests=len(holds))
        link.close()

    def _retry_or_fail(self, hold: _Hold, state: RequestState) -> None:
        """Run a request again elsewhere if nothing of it was written, once; else end it with an error."""
        lost = hold.link
        if state.committed or hold.attempt >= _MAX_ATTEMPTS:
            state.fail(_lost_error(lost))
            return
        try:
            hold.link = self._route(state.request_id, hold.tokens, hold.attempt + 1)
        except ApiError:
            state.fail(_lost_error(lost))
            return
        hold.attempt += 1
        hold.open = set(range(state.num_sequences))
        state.restart()
        self._place(hold)


def _settle(answer: asyncio.Future[Answer], outcome: Answer | Refused | ApiError) -> None:
    if answer.done():
        return
    match outcome:
        case Refused():
            answer.set_exception(_refusal(outcome))
        case ApiError():
            answer.set_exception(outcome)
        case _:
            answer.set_result(outcome)


def _refusal(refused: Refused) -> ApiError:
    return ApiError(refused.status, refused.message, refused.error_type, refused.param, refused.code)


def _lost_error(link: ReplicaLink) -> ApiError:
    return unavailable(f"replica {link.replica} ended while it worked on this request", "engine_error")
