"""What parameters do to a sequence's raw logits before anything is drawn: bias, penalties, bans."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.messages import SamplingParams, SlotStart
from engine.runner.sampling.arrays import Floats, Ints, lengths, to_device
from engine.runner.sampling.bad_words import BadWords
from engine.runner.sampling.penalties import Penalties


class LogitRules:
    """The rules of one slot. Owns what they must know of the sequence, so that a plan need not repeat it."""

    def __init__(self, start: SlotStart) -> None:
        params, prompt, sampled = start.params, start.token_ids[: start.num_prompt], start.token_ids[start.num_prompt :]
        bias = dict(params.logit_bias)
        self.bias_ids = np.array(list(bias), np.int64)
        self.bias = np.array(list(bias.values()), np.float32)
        self.penalties = Penalties(params, prompt, sampled) if _has_penalties(params) else None
        self._bad_words = BadWords(params.bad_word_ids, start.token_ids) if params.bad_word_ids else None
        self._stop_ids = list(start.stop_ids)
        self._end_allowed_at = start.num_prompt + params.min_tokens

    @classmethod
    def of(cls, start: SlotStart) -> LogitRules | None:
        """None for a sequence whose logits stay as they are."""
        params = start.params
        ruled = params.logit_bias or params.bad_word_ids or params.min_tokens or _has_penalties(params)
        return cls(start) if ruled else None

    def append(self, token: int) -> None:
        """`token` has been sampled."""
        if self.penalties:
            self.penalties.append(token)
        if self._bad_words:
            self._bad_words.append(token)

    def banned(self, position: int) -> Ints:
        """Ids that may not come at `position`; an id can be there twice."""
        ids = self._bad_words.forbidden() if self._bad_words else []
        if position < self._end_allowed_at:
            ids = ids + self._stop_ids
        return np.array(ids, np.int64)


def apply_rules(logits: Tensor, rules: dict[int, LogitRules], positions: Ints) -> None:
    """Change `logits` (float32 ``[n, vocab_size]``) in place: row i by ``rules[i]``, where there are any.

    Bias, then the repetition penalty, then frequency and presence penalty, then bans; ``positions[i]`` is that of
    the token to be sampled. Costs one scatter for each kind of rule, over the tokens concerned.
    """
    if not rules:
        return
    _add_bias(logits, rules)
    _penalise(logits, {row: r.penalties for row, r in rules.items() if r.penalties})
    _ban(logits, {row: r.banned(int(positions[row])) for row, r in rules.items()})


def _add_bias(logits: Tensor, rules: dict[int, LogitRules]) -> None:
    rows, ids = _flat({row: r.bias_ids for row, r in rules.items()})
    if ids.size:
        bias = np.concatenate([r.bias for r in rules.values()])
        logits.index_put_(_places(logits, rows, ids), to_device(bias, logits), accumulate=True)


def _penalise(logits: Tensor, penalties: dict[int, Penalties]) -> None:
    rows, ids = _flat({row: p.ids for row, p in penalties.items()})
    if not ids.size:
        return
    places = _places(logits, rows, ids)
    deductions = to_device(np.concatenate([p.deductions for p in penalties.values()]), logits)
    factors = to_device(_per_entry(penalties), logits)
    values = logits[places]
    # A positive logit is divided, a negative one multiplied: both make the token less likely for a factor above 1.
    logits[places] = torch.where(values > 0, values / factors, values * factors) - deductions


def _per_entry(penalties: dict[int, Penalties]) -> Floats:
    factors = np.array([p.repetition for p in penalties.values()], np.float32)
    return np.repeat(factors, lengths([p.ids for p in penalties.values()]))


def _ban(logits: Tensor, banned: dict[int, Ints]) -> None:
    rows, ids = _flat({row: _bearable(ids, logits.shape[-1]) for row, ids in banned.items()})
    if ids.size:
        logits[_places(logits, rows, ids)] = -torch.inf


def _bearable(ids: Ints, vocab_size: int) -> Ints:
    """The bans that count: of ids that the model has, and none where they would leave no token to go on with."""
    ids = ids[(ids >= 0) & (ids < vocab_size)]
    return ids[:0] if ids.size >= vocab_size and np.unique(ids).size == vocab_size else ids


def _flat(ids_of_row: dict[int, Ints]) -> tuple[Ints, Ints]:
    """Row numbers and ids, entry by entry."""
    if not ids_of_row:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ids = list(ids_of_row.values())
    return np.repeat(np.array(list(ids_of_row), np.int64), lengths(ids)), np.concatenate(ids)


def _places(logits: Tensor, rows: Ints, ids: Ints) -> tuple[Tensor, Tensor]:
    return to_device(rows, logits), to_device(ids, logits)


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)
