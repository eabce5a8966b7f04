"""From a tokenized request to sequences, or to a refusal."""

from __future__ import annotations

import secrets

from engine.messages import Enqueue, Refused, SequenceSpec
from engine.scheduler.choices import Choices
from engine.scheduler.limits import Limits
from engine.scheduler.sequence import Sequence

SEED_BITS = 63


class Arrivals:
    """Numbers and ranks sequences, draws seeds, and refuses what could never run.

    A priority moves the time of arrival: each level counts as much as so many seconds of waiting. So whoever
    waits overtakes later arrivals of a better priority in the end, and with equal priorities the order is first
    come, first served.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._eos = frozenset(limits.eos_token_ids)
        self._next_seq_id = 0

    def refusal(self, message: Enqueue) -> Refused | None:
        """Why a request can never run, for the client; None when it can.

        The tokenizer has checked all this; a request that could not be admitted would hold up the queue
        for ever, so nothing is taken on trust.
        """
        longest = max(map(len, message.prompts), default=0)
        shortest = min(map(len, message.prompts), default=0)
        if not shortest:
            return _refused(message, "The prompt is empty: there is nothing to continue from.", None)
        if longest >= self._limits.longest_sequence:
            return _refused(
                message,
                f"The prompt has {longest} tokens, but prompt and answer together can have at most "
                f"{self._limits.longest_sequence}.",
                "context_length_exceeded",
            )
        return None

    def sequences(self, message: Enqueue, now_ns: int) -> list[Sequence]:
        """The sequences of a request that was not refused and arrived at `now_ns`."""
        params = message.params
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        choices = self._choices(message)
        return [self._sequence(message, spec, stop_ids, choices[spec.prompt], now_ns) for spec in message.sequences]

    def _choices(self, message: Enqueue) -> list[Choices | None]:
        """For each prompt, what its sequences have in common, if several can share a block."""
        counts = [0] * len(message.prompts)
        for spec in message.sequences:
            counts[spec.prompt] += 1
        size = self._limits.block_size
        shared = [(len(prompt) - 1) // size * size for prompt in message.prompts]
        if message.params.prompt_logprobs is not None:
            shared = [0] * len(shared)  # each computes its own
        return [Choices(tokens) if count > 1 and tokens else None for tokens, count in zip(shared, counts, strict=True)]

    def _sequence(
        self, message: Enqueue, spec: SequenceSpec, stop_ids: frozenset[int], choices: Choices | None, now_ns: int
    ) -> Sequence:
        prompt = message.prompts[spec.prompt]
        limit = self._limits.longest_sequence
        if message.params.max_tokens is not None:
            limit = min(limit, len(prompt) + message.params.max_tokens)
        self._next_seq_id += 1
        return Sequence(
            seq_id=self._next_seq_id,
            request_id=message.request_id,
            gateway=message.gateway,
            index=spec.index,
            prompt_index=spec.prompt,
            prompt=prompt,
            params=message.params,
            seed=secrets.randbits(SEED_BITS) if spec.seed is None else spec.seed,
            stop_ids=stop_ids,
            tokens_limit=limit,
            rank=(now_ns + message.priority * self._limits.priority_aging_ns, self._next_seq_id),
            cache_salt=message.cache_salt,
            choices=choices,
        )


def _refused(message: Enqueue, text: str, code: str | None) -> Refused:
    return Refused(message.request_id, message.gateway, 400, "invalid_request_error", text, param="prompt", code=code)
