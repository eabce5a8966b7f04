"""The work to send: how many requests, how many at once, and what they ask for."""

from __future__ import annotations

import random

import msgspec

# Short everyday words: nearly every vocabulary has each of them, with its leading space, as one token.
_TEXT = (
    "apple road river stone house garden window table paper letter music color summer winter morning evening bread "
    "water light shadow silver gold green blue red white black small large quick slow warm cold north south east west "
    "open close begin end read write speak listen carry build break find lose give take walk run sleep wake learn "
    "teach count measure bird horse fish tree leaf root cloud rain wind fire earth sky star moon sun day night week "
    "year friend child father mother doctor farmer sailor king queen city village bridge market school church field"
)
_WORDS = _TEXT.split()


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario. Prompts are random words: about one token each.

    ``prompt_tokens`` 0 means that ``prompt_words`` counts; otherwise the words are chosen so that the server
    counts about that many tokens. ``shared_prefix_words`` stand in front of every prompt, always the same.
    """

    name: str = "custom"
    requests: int = 32
    concurrency: int = 4
    prompt_words: int = 64
    prompt_tokens: int = 0
    output_tokens: int = 64
    shared_prefix_words: int = 0
    warmup: int = 2


SCENARIOS = {
    workload.name: workload
    for workload in (
        Workload(name="single", concurrency=1, requests=3, prompt_words=32, output_tokens=64),
        Workload(name="prefill", concurrency=1, requests=4, prompt_words=512, output_tokens=2),
        Workload(name="batch8", concurrency=8, requests=16, prompt_words=64, output_tokens=64),
        Workload(name="batch32", concurrency=32, requests=64, prompt_words=64, output_tokens=64),
        Workload(name="shared", concurrency=4, requests=12, prompt_words=16, output_tokens=16, shared_prefix_words=700),
        Workload(name="short", concurrency=16, requests=64, prompt_words=8, output_tokens=4),
    )
}
"""Named workloads: one stream, long prompts, batches, a long common prefix, many short requests."""


class Prompts:
    """The prompts of one run; the same seed and name give the same prompts, others share no prefix with them."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._words = workload.prompt_words
        self._seed = f"{seed} {workload.name}"
        self.prefix = words(workload.shared_prefix_words, f"{self._seed} prefix")

    def prompt(self, index: int | str) -> str:
        """The prompt of one request."""
        own = words(self._words, f"{self._seed} {index}")
        return f"{self.prefix} {own}" if self.prefix else own


def words(count: int, seed: str) -> str:
    """`count` random words."""
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def words_for_tokens(tokens: int, short: tuple[int, int], long: tuple[int, int]) -> int:
    """How many words make `tokens` tokens, from two (words, tokens) counted by the server; at least one."""
    per_word = (long[1] - short[1]) / (long[0] - short[0])
    around = short[1] - per_word * short[0]  # template, start token
    return max(1, round((tokens - around) / per_word))
