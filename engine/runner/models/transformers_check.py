"""Does a model of transformers compute on the paged KV cache what it computes by itself? Asked before it serves.

Two rows are run in a few steps (chunks, chunks on top of cached tokens, single tokens), and the logits of every token
are compared with those of the model's own attention over each row alone. A model that keeps other state between tokens
than keys and values, adds position biases to its scores, or sees tokens behind a token, shows here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.messages import SamplingParams, SlotStart, StepPlan
from engine.model_shape import ModelShape
from engine.process import CannotStartError
from engine.runner.attention.paged import PagedAttention
from engine.runner.attention.spec import FULL_ATTENTION, AttentionSpec
from engine.runner.kv_cache import KVCache
from engine.runner.models.base import Model
from engine.runner.models.model_config import ModelConfig
from engine.runner.slots import SlotTable
from engine.runner.step_batch import prepare
from engine.runner.weights import Checkpoint

_STEPS = ([6, 4], [3, 3], [1, 1], [1, 1], [1, 1])
"""Tokens of both rows per step."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}
"""Of the difference, root mean square over the vocabulary, relative to the logits'. Rounding makes 1e-6 and 0.01 to
0.06 of it; what is computed otherwise is above 0.3.
"""


class RecordingAttention:
    """`Attend` that remembers with which settings each layer came."""

    def __init__(self) -> None:
        self.specs: dict[int, AttentionSpec] = {}
        self.attention: PagedAttention | None = None

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec = FULL_ATTENTION, /
    ) -> Tensor:
        """See `Attend`."""
        assert self.attention is not None
        self.specs[layer] = spec
        return self.attention(layer, query, key, value, spec)


def first_line(error: Exception) -> str:
    """What an error of a library says, for a message of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@torch.inference_mode()
def reference_logits(config: ModelConfig, shape: ModelShape, model: Any) -> list[Tensor]:
    """Float32 logits ``[num_tokens, vocab_size]`` of both rows, by the model's own attention.

    Raises CannotStartError when it cannot compute any.
    """
    rows = [torch.tensor([ids], device=model.device) for ids in _rows(shape)]
    try:
        return [model(input_ids=ids, use_cache=False).logits[0].float() for ids in rows]
    except Exception as e:
        raise CannotStartError(
            f"{config.folder}: transformers cannot run this {shape.architecture} ({first_line(e)})"
        ) from e


@torch.inference_mode()
def check_equal(
    config: ModelConfig, shape: ModelShape, checkpoint: Checkpoint, model: Model, expected: list[Tensor]
) -> dict[int, AttentionSpec]:
    """Compare `model` with what was `expected`. Raises CannotStartError with the reason when they differ.

    Returns with which settings each layer came to its attention.
    """
    attend = RecordingAttention()
    prefix = f"{config.folder}: {shape.architecture} cannot be served through transformers:"
    try:
        found = _paged_logits(shape, checkpoint, model, attend)
    except Exception as e:
        raise CannotStartError(f"{prefix} its attention does not work on a paged KV cache ({first_line(e)})") from e
    if sorted(attend.specs) != list(range(shape.num_layers)):
        raise CannotStartError(f"{prefix} not all of its layers use transformers' attention interface")
    for ours, theirs in zip(found, _by_kind_of_step(expected), strict=True):
        difference = _relative_difference(ours, theirs)
        if not difference <= _TOLERANCE[checkpoint.dtype]:  # so that "not a number" is refused too
            raise CannotStartError(f"{prefix} on a paged KV cache its logits are off by {difference:.1%}")
    return attend.specs


def _rows(shape: ModelShape) -> list[list[int]]:
    """Ids from all over the vocabulary, none the same as its neighbours."""
    lengths = [sum(counts) for counts in zip(*_STEPS, strict=True)]
    return [[(row + 7919 * (i + 1)) % shape.vocab_size for i in range(n)] for row, n in enumerate(lengths)]


def _paged_logits(shape: ModelShape, checkpoint: Checkpoint, model: Model, attend: RecordingAttention) -> list[Tensor]:
    rows = _rows(shape)
    longest = max(map(len, rows))
    table = SlotTable(len(rows), longest, block_size=1)
    cache = KVCache(shape, len(rows) * longest, 1, checkpoint.dtype, checkpoint.device)
    found: list[list[Tensor]] = [[] for _ in rows]
    for plan in _plans(rows, longest):
        batch = prepare(plan, table)
        attend.attention = PagedAttention(cache, batch, table)
        ids, positions = (torch.from_numpy(a).to(checkpoint.device) for a in (batch.token_ids, batch.positions))
        logits = model.logits(model.forward(ids, positions, attend))
        for row, part in zip(found, torch.split(logits, plan.num_tokens), strict=True):
            row.append(part)
    return _by_kind_of_step([torch.cat(parts) for parts in found])


def _plans(rows: list[list[int]], longest: int) -> list[StepPlan]:
    """One plan for each of _STEPS; row i has the blocks from i · longest on."""
    slots = list(range(len(rows)))
    starts = [0 for _ in rows]
    plans = []
    for number, counts in enumerate(_STEPS):
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        first = number == 0
        plan = StepPlan(
            step_id=-1,
            predicted_ns=0,
            starting=[SlotStart(s, 0, len(rows[s]), SamplingParams(temperature=0.0)) for s in slots] if first else [],
            slots=slots,
            starts=starts,
            num_tokens=counts,
            samples=[False for _ in rows],
            new_blocks=[list(range(s * longest, (s + 1) * longest)) if first else [] for s in slots],
            token_ids=[t for s in slots for t in rows[s][starts[s] : ends[s]]],
        )
        plans.append(plan)
        starts = ends
    return plans


def _by_kind_of_step(rows: list[Tensor]) -> list[Tensor]:
    """Logits of the tokens in the first chunks, in the second ones, and of the single tokens."""
    first, second = _STEPS[:2]
    parts = [torch.tensor_split(row, [first[i], first[i] + second[i]]) for i, row in enumerate(rows)]
    return [torch.cat(same) for same in zip(*parts, strict=True)]


def _relative_difference(found: Tensor, expected: Tensor) -> float:
    """The median over tokens: rounding may send one to other experts of a mixture, and its logits far away."""
    scale = (expected - expected.mean(-1, keepdim=True)).square().mean().sqrt()
    return float((found - expected).square().mean(-1).sqrt().median() / scale)
