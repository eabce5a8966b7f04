"""Any other decoder-only model: transformers' own code, with its attention on our paged KV cache.

All rows of a step are one batch row for transformers; only attention knows where one ends, and that is ours. This
holds for models whose layers mix tokens nowhere but in an attention that goes through transformers' interface. What a
model is like is not taken on trust: `transformers_check` compares it with itself before it serves.

The only file that imports transformers in a serving process, and itself imported only for such models.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from engine.model_shape import ModelShape
from engine.process import CannotStartError
from engine.runner.attention.spec import AttentionSpec
from engine.runner.models.base import Attend
from engine.runner.models.model_config import ModelConfig
from engine.runner.models.transformers_check import check_equal, first_line, reference_logits
from engine.runner.weights import Checkpoint


def load_through_transformers(config: ModelConfig, shape: ModelShape, checkpoint: Checkpoint) -> TransformersModel:
    """Load and check a model. Raises CannotStartError when it cannot be served this way, with the reason."""
    model = _load(config, shape, checkpoint)
    _refuse_long_rope(config, model)
    expected = reference_logits(config, shape, model)
    wrapped = TransformersModel(model)
    specs = check_equal(config, shape, checkpoint, wrapped, expected)
    _refuse_other_layers(config, model, specs)
    structlog.get_logger().warning(
        "model runs through transformers: no code of ours for its architecture, so it is slower",
        architecture=shape.architecture,
    )
    return wrapped


class TransformersModel:
    """A `Model` around one of transformers'."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Takes `model` over: its attention becomes ours, and its decoder is taken out of it."""
        name = f"vitrine-{id(self)}"
        AttentionInterface.register(name, self._attention)
        model.set_attn_implementation(name)
        self._attend: Attend | None = None
        self._decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
        self._decoded = _Decoded()
        self._model = model
        place = next(name for name, module in model.named_modules() if module is self._decoder)
        model.set_submodule(place, self._decoded)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[num_tokens]`` ids and positions (int64) to ``[num_tokens, hidden_size]``."""
        self._attend = attend
        output = self._decoder(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        self._decoded.kind = type(output)
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden_size]`` to float32 ``[n, vocab_size]``."""
        self._decoded.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        return self._model(input_ids=ids, use_cache=False).logits[0].float()  # type: ignore[no-any-return]

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """transformers' attention interface: ``[1, heads, num_tokens, head_dim]`` in,
        ``[1, num_tokens, num_heads, head_dim]`` out. What else it can ask for shows in the comparison at load.
        """
        assert self._attend is not None
        queries, keys, values = (heads[0].transpose(0, 1) for heads in (query, key, value))
        spec = AttentionSpec(sliding_window, softcap, scaling)
        out = self._attend(int(module.layer_idx), queries, keys, values, spec)  # type: ignore[arg-type]
        return out.view(1, *queries.shape), None


class _Decoded(nn.Module):
    """Stands in the place of a model's decoder, so that the rest of the model (head, scales, caps) can run alone."""

    kind: type[Any]
    hidden: Tensor

    def forward(self, *_: Any, **__: Any) -> Any:
        """The hidden states that are set, as the decoder would have returned them."""
        return self.kind(last_hidden_state=self.hidden)


def _load(config: ModelConfig, shape: ModelShape, checkpoint: Checkpoint) -> PreTrainedModel:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, info = load(
            config.folder,
            dtype=checkpoint.dtype,
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as e:
        raise CannotStartError(
            f"{config.folder}: transformers cannot load a {shape.architecture}: {first_line(e)}"
        ) from e
    if type(model).__name__ != shape.architecture:
        raise CannotStartError(
            f"{config.folder}: config.json names the architecture {shape.architecture!r}, which is not known here, and "
            f"transformers reads it as a {type(model).__name__}"
        )
    if info["missing_keys"]:
        raise CannotStartError(f"{config.folder}: the weights have no tensor {min(info['missing_keys'])!r}")
    return model.to(checkpoint.device).eval()  # type: ignore[no-any-return]


def _refuse_long_rope(config: ModelConfig, model: PreTrainedModel) -> None:
    """Its rotation depends on the longest sequence of the batch: rows would change each other's answers."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    sections = [rope, *(section for section in rope.values() if isinstance(section, dict))]
    if any(section.get("rope_type") == "longrope" for section in sections):
        raise config.refusal("rope_type 'longrope', which is not supported")


def _refuse_other_layers(config: ModelConfig, model: PreTrainedModel, specs: dict[int, AttentionSpec]) -> None:
    """Windows and the like begin beyond the few tokens that are compared, so their kinds are looked at.

    A layer with a window must have told its attention of it (`specs`).
    """
    for layer, kind in enumerate(getattr(model.config, "layer_types", None) or []):
        if kind not in ("full_attention", "sliding_attention"):
            raise config.refusal(f"layers of type {kind!r}, which are not supported")
        if kind == "sliding_attention" and specs[layer].window is None:
            raise config.refusal(f"a window in layer {layer}, of which its attention is not told")
    window = getattr(model.config, "sliding_window", None)
    used = getattr(model.config, "use_sliding_window", True)
    if window and used and not any(spec.window for spec in specs.values()):
        raise config.refusal(f"sliding_window {window}, of which no layer's attention is told")
