"""A sequence as the scheduler sees it.

There are no phases: scheduled tokens chase known tokens, and a row of a step closes part of the gap::

    tokens     ├────────── prompt ──────────┼──── sampled ────┼ pending ┤
    scheduled  ├─ cached ─┼─ row ─┼─ row ───┼─ row ┼ row ┼ …   ↑ remaining
    computed   ├─ cached ─┼─ row ─┼ …  (rows whose results are here)
    blocks     ├──────┼──────┼──────┼──────┼──────┼──────┤

A pending token is one that a step in flight will sample: it has a place, but no id yet.
"""

from __future__ import annotations

from array import array
from operator import attrgetter

from engine.messages import SamplingParams, SequenceEnd, SequenceStart, SlotStart
from engine.scheduler.choices import Choices
from telemetry.events import FinishReason, SequenceEnded, SequenceQueued, WaitReason

NO_SLOT = -1

Rank = tuple[int, int]
"""Place in the order of service, earlier ones first: (virtual time of arrival in ns, seq_id)."""
by_rank = attrgetter("rank")
"""The key that queue and batch are sorted by."""


class Sequence:
    """Counts and blocks of one (prompt, choice). Token ids are kept to be computed again after a preemption."""

    __slots__ = (
        "_block_contents",
        "blocks",
        "cache_entry",
        "cache_salt",
        "cached_blocks",
        "cached_tokens",
        "capacity",
        "choices",
        "computed",
        "finish_reason",
        "gateway",
        "index",
        "num_prompt",
        "params",
        "pending",
        "preemptions",
        "prompt_index",
        "prompt_logprobs_given",
        "rank",
        "request_id",
        "rows_in_flight",
        "scheduled",
        "seed",
        "seq_id",
        "slot",
        "stop_ids",
        "tokens",
        "tokens_limit",
        "wait_reason",
    )

    def __init__(
        self,
        *,
        seq_id: int,
        request_id: str,
        gateway: int,
        index: int,
        prompt_index: int,
        prompt: list[int],
        params: SamplingParams,
        seed: int,
        stop_ids: frozenset[int],
        tokens_limit: int,
        rank: Rank,
        cache_salt: str = "",
        choices: Choices | None = None,
    ) -> None:
        """`tokens_limit` counts prompt and answer: with that many tokens the sequence ends by length.

        `choices` are the sequences with the same prompt in the same request, where there is more than one.
        """
        self.seq_id = seq_id
        self.request_id = request_id
        self.gateway = gateway
        self.index = index
        self.prompt_index = prompt_index
        self.params = params
        self.seed = seed
        self.stop_ids = stop_ids
        self.tokens_limit = tokens_limit
        self.rank = rank
        self.cache_salt = cache_salt
        self.choices = choices
        self.num_prompt = len(prompt)
        self.tokens = list(prompt)
        self.pending = 0  # tokens that steps in flight will sample
        self.scheduled = 0  # tokens that are computed or will be by steps in flight
        self.computed = 0
        self.blocks: list[int] = []
        self.capacity = 0  # tokens that fit in `blocks`
        self.cached_tokens = 0  # of the prompt, found in the prefix cache at the first admission
        self.cached_blocks = 0  # full blocks of this sequence that the prefix cache knows
        self.cache_entry = 0  # the prefix cache's number for the last of them
        self.slot = NO_SLOT
        self.preemptions = 0
        self.wait_reason: WaitReason | None = None
        self.rows_in_flight = 0  # rows in steps in flight
        self.prompt_logprobs_given = 1  # prompt tokens up to here need no log probabilities, or have been given them
        self.finish_reason: FinishReason | None = None
        self._block_contents: list[bytes] = []

    @property
    def remaining(self) -> int:
        """Tokens that the next row may compute; 0 when nothing is left to do but to await the last token."""
        known = len(self.tokens) + self.pending
        return known - self.scheduled if known < self.tokens_limit else 0

    @property
    def decoding(self) -> bool:
        """Whether only the token sampled last is left to compute."""
        return self.scheduled >= self.num_prompt and self.remaining == 1

    @property
    def output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.num_prompt

    def finish_after(self, token: int) -> FinishReason | None:
        """Why the sequence ends with `token`, its newest one; None when it goes on."""
        if token in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.tokens_limit else None

    def block_contents(self, block_size: int, count: int) -> list[bytes]:
        """Token ids of the first `count` full blocks, as bytes; each block is packed once."""
        contents = self._block_contents
        for start in range(len(contents) * block_size, count * block_size, block_size):
            contents.append(array("i", self.tokens[start : start + block_size]).tobytes())
            if not start:  # what begins differently shares nothing; ids have a fixed length, so nothing else looks so
                contents[0] += self.cache_salt.encode()
        return contents[:count]

    def forget_blocks(self) -> list[int]:
        """Back to nothing computed; returns the blocks, which are the caller's to release."""
        blocks, self.blocks = self.blocks, []
        self.scheduled = self.computed = self.capacity = self.cached_blocks = self.cache_entry = 0
        return blocks

    def slot_start(self) -> SlotStart:
        """What the runner must know before the first row in a slot."""
        params = self.params
        history = params.needs_history or params.prompt_logprobs is not None
        return SlotStart(
            self.slot,
            self.seed,
            self.num_prompt,
            params,
            self.tokens.copy() if history else [],
            tuple(self.stop_ids) if params.min_tokens else (),
        )

    def start_message(self) -> SequenceStart:
        """What the detokenizer must know before the first token."""
        return SequenceStart(
            self.seq_id,
            self.request_id,
            self.gateway,
            self.index,
            self.tokens[: self.num_prompt],
            self.cached_tokens,
            self.params,
        )

    def end_message(self, reason: FinishReason) -> SequenceEnd:
        """The end of a sequence that gets no last token."""
        return SequenceEnd(self.seq_id, self.request_id, self.gateway, self.index, reason)

    def queued_record(self, at_ns: int) -> SequenceQueued:
        """The journal's record of its arrival."""
        max_tokens = self.tokens_limit - self.num_prompt
        return SequenceQueued(
            self.request_id,
            self.index,
            self.prompt_index,
            self.seq_id,
            at_ns,
            self.num_prompt,
            max_tokens,
            self.seed,
        )

    def ended_record(self, at_ns: int, reason: FinishReason) -> SequenceEnded:
        """The journal's record of its end."""
        return SequenceEnded(
            self.seq_id, at_ns, reason, self.output_tokens, self.cached_tokens, self.preemptions, error=""
        )
