"""The detokenizer's work, apart from its process: sampled ids in, increments out."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from engine.detokenizer.incremental import start_detokenizer
from engine.detokenizer.introduction import Introduction, PromptReader
from engine.detokenizer.logprob_texts import LogprobTexts
from engine.detokenizer.pieces import Pieces
from engine.detokenizer.stop_strings import Piece, StopMatcher
from engine.messages import (
    Increment,
    PromptLogprobs,
    SequenceEnd,
    SequenceStart,
    StepTokens,
    TokenLogprobs,
    TokenTextLogprobs,
)
from telemetry.events import FinishReason, SequenceDetokenized


class StepText(msgspec.Struct):
    """What came of one step."""

    increments: list[Increment]
    stop_hits: list[int]  # seq_ids to be freed
    ended: list[SequenceDetokenized]


class Sequences:
    """The sequences whose tokens are expected."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._live: dict[int, _Sequence] = {}

    def __len__(self) -> int:
        return len(self._live)

    def start(self, start: SequenceStart) -> None:
        """Expect tokens of a sequence."""
        self._live[start.seq_id] = _Sequence(start, self._pieces)

    def forget(self, of_gateway: Callable[[int], bool]) -> None:
        """Drop the sequences of the gateway incarnations for which `of_gateway` is true."""
        self._live = {i: sequence for i, sequence in self._live.items() if not of_gateway(sequence.start.gateway)}

    def note_prompt(self, message: PromptLogprobs) -> None:
        """Log probabilities of a part of a prompt; they go out with the sequence's first increment."""
        sequence = self._live.get(message.seq_id)
        if sequence is None:
            return
        began_ns = time.monotonic_ns()
        sequence.prompt.read(message)
        _share_time([sequence], began_ns)

    def step(self, step: StepTokens) -> StepText:
        """One increment per token, in order. Tokens of sequences that are over are left out."""
        began_ns = time.monotonic_ns()
        text = StepText([], [], [])
        sequences: list[_Sequence] = []
        over: list[_Sequence] = []
        for i, (seq_id, token_id, finish) in enumerate(zip(step.seq_ids, step.token_ids, step.finish, strict=True)):
            sequence = self._live.get(seq_id)
            if sequence is None:
                continue
            sequences.append(sequence)
            reason = FinishReason(finish) if finish else None
            increment = sequence.push(token_id, reason, step.sampled_ns, step.logprobs.get(i))
            text.increments.append(increment)
            if increment.finish_reason is not None:
                over.append(self._live.pop(seq_id))
                if not finish:
                    text.stop_hits.append(seq_id)
        _share_time(sequences, began_ns)
        text.ended = [sequence.record() for sequence in over]
        return text

    def end(self, end: SequenceEnd) -> tuple[Increment, SequenceDetokenized | None]:
        """The last increment of a sequence that ends without a token; also for one that is not known here."""
        sequence = self._live.pop(end.seq_id, None)
        if sequence is None:
            return _passed_on(end), None
        increment = sequence.end(end)
        return increment, sequence.record()


class _Sequence:
    """Text and stop strings of one sequence."""

    def __init__(self, start: SequenceStart, pieces: Pieces) -> None:
        params = start.params
        self.start = start
        self.busy_ns = 0
        self._logprobs = LogprobTexts(pieces, pieces.skipped(params.skip_special_tokens))
        self.prompt = PromptReader(start, pieces, self._logprobs)
        self._detokenizer = start_detokenizer(pieces, start.prompt_token_ids, params.skip_special_tokens)
        self._stops = StopMatcher(params.stop, params.include_stop_str) if params.stop else None
        self._tokens = 0
        self._stop = ""
        self._first_ns = 0

    def push(
        self, token_id: int, finish: FinishReason | None, sampled_ns: int, logprobs: TokenLogprobs | None
    ) -> Increment:
        """One token, the last one if `finish` is given."""
        if not self._tokens:
            self._first_ns = time.monotonic_ns()
        self._tokens += 1
        ends_by_id = finish is FinishReason.STOP  # such a token makes no text
        piece = Piece("") if ends_by_id else self._read(self._detokenizer.push(token_id))
        if finish is not None and not piece.stop:
            piece = self._read_to_end(piece.text)
        stop_reason: str | int | None = piece.stop or None
        if piece.stop:
            finish = FinishReason.STOP
        elif ends_by_id and token_id in self.start.params.stop_token_ids:
            stop_reason = token_id
        introduction = self.prompt.introduce()
        texts = [] if logprobs is None else [self._logprobs.read(token_id, logprobs, ends_by_id)]
        return self._increment(introduction, piece.text, [token_id], texts, sampled_ns, finish, stop_reason)

    def end(self, end: SequenceEnd) -> Increment:
        """The end without a token."""
        text = self._read_to_end("").text
        return self._increment(self.prompt.introduce(), text, [], [], 0, end.finish_reason, None, end.error)

    def record(self) -> SequenceDetokenized:
        """For the journal."""
        start = self.start
        return SequenceDetokenized(
            request_id=start.request_id,
            index=start.index,
            seq_id=start.seq_id,
            first_ns=self._first_ns,
            at_ns=time.monotonic_ns(),
            busy_ns=self.busy_ns,
            tokens=self._tokens,
            stop_string=self._stop,
        )

    def _read(self, text: str) -> Piece:
        if self._stops is None:
            return Piece(text)
        piece = self._stops.push(text)
        self._stop = piece.stop
        return piece

    def _read_to_end(self, text: str) -> Piece:
        """`text`, and all that was held back behind it (in which a stop string may be complete yet)."""
        piece = self._read(self._detokenizer.flush())
        text += piece.text
        if self._stops is not None and not piece.stop:
            text += self._stops.flush()
        return Piece(text, piece.stop)

    def _increment(
        self,
        introduction: Introduction,
        text: str,
        token_ids: list[int],
        logprobs: list[TokenTextLogprobs],
        sampled_ns: int,
        finish: FinishReason | None,
        stop_reason: str | int | None,
        error: str = "",
    ) -> Increment:
        start = self.start
        return Increment(
            request_id=start.request_id,
            gateway=start.gateway,
            index=start.index,
            text=text,
            token_ids=token_ids,
            sampled_ns=sampled_ns,
            finish_reason=finish,
            stop_reason=stop_reason,
            error=error,
            prompt_token_ids=introduction.token_ids,
            cached_tokens=introduction.cached_tokens,
            prompt_text=introduction.text,
            prompt_logprobs=introduction.logprobs,
            logprobs=logprobs,
        )


def _share_time(sequences: list[_Sequence], began_ns: int) -> None:
    """Reading the clock for each token would cost as much as detokenizing it: a step's time is shared out."""
    if not sequences:
        return
    share_ns = (time.monotonic_ns() - began_ns) // len(sequences)
    for sequence in sequences:
        sequence.busy_ns += share_ns


def _passed_on(end: SequenceEnd) -> Increment:
    return Increment(end.request_id, end.gateway, end.index, "", [], 0, end.finish_reason, error=end.error)
