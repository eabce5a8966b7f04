"""What a model's forward pass costs, read off its weights and its attention.

No family is known here: products are those with the matrices in the checkpoint, and what each layer's attention sees is
found by asking the model for one token.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.model_shape import ModelShape
from engine.runner.attention.spec import FULL_ATTENTION, AttentionSpec
from engine.runner.models.base import Model
from telemetry.events import AttentionWork, ModelWork

_OF_A_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.")
_OTHER_PARTS = re.compile(r"(?:^|\.)(?:vision|audio)")
_EXPERTS = re.compile(r"\.experts\.")


def model_work(
    shapes: Mapping[str, Sequence[int]], shape: ModelShape, model: Model, expert_share: float, device: torch.device
) -> ModelWork | None:
    """Count. `shapes` are those of the checkpoint, `expert_share` is the share of the experts that a token uses.

    None when no weight can be told to belong to a layer.
    """
    attention, itemsize = observe_attention(model, device)
    matrices = {name: math.prod(size) for name, size in shapes.items() if len(size) > 1 and _OF_A_LAYER.search(name)}
    own = {name: size for name, size in matrices.items() if not _OTHER_PARTS.search(name)}
    if not own or not attention:
        return None
    experts = sum(size for name, size in own.items() if _EXPERTS.search(name))
    dense = sum(own.values()) - experts
    logits = shape.vocab_size * shape.hidden_size
    return ModelWork(
        flops_per_token=2 * (dense + round(experts * expert_share)),
        flops_per_logits=2 * logits,
        weight_bytes=dense * itemsize,
        logits_bytes=logits * itemsize,
        expert_bytes=experts * itemsize,
        expert_share=expert_share,
        attention=attention,
    )


class _Observer:
    """An `Attend` that notes what it is asked for, and answers with zeros."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[int, int, int]] = Counter()  # (window, FLOPs per pair, KV bytes): layers
        self.itemsize = 0

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec = FULL_ATTENTION, /
    ) -> Tensor:
        _, num_heads, head_dim = query.shape
        self.itemsize = key.dtype.itemsize
        kv_bytes = (key[0].numel() + value[0].numel()) * self.itemsize
        self.seen[spec.window or 0, 4 * num_heads * head_dim, kv_bytes] += 1
        return torch.zeros_like(query, memory_format=torch.contiguous_format).flatten(1)


def observe_attention(model: Model, device: torch.device) -> tuple[list[AttentionWork], int]:
    """The attention of all layers, equal ones together, and the bytes of a number in the model's format."""
    observer = _Observer()
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    with torch.inference_mode():
        model.forward(zero, zero, observer)
    works = [
        AttentionWork(num_layers=n, window=window, flops_per_pair=n * flops, kv_bytes_per_position=n * kv_bytes)
        for (window, flops, kv_bytes), n in observer.seen.items()
    ]
    return works, observer.itemsize
