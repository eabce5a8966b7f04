"""The model families. A new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.model_shape import ModelShape
from engine.process import CannotStartError
from engine.runner.models.base import Model
from engine.runner.models.gemma2 import gemma2
from engine.runner.models.gemma3 import TEXT_PREFIXES, gemma3
from engine.runner.models.llama import llama
from engine.runner.models.mistral import mistral
from engine.runner.models.model_config import ModelConfig
from engine.runner.models.qwen2 import qwen2
from engine.runner.models.qwen3 import qwen3
from engine.runner.models.smollm3 import smollm3
from engine.runner.models.source import ModelSource
from engine.runner.weights import Checkpoint

_FAMILIES: dict[str, Callable[[ModelSource], Model]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "SmolLM3ForCausalLM": smollm3,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3,
}


def load_model(folder: Path, shape: ModelShape, checkpoint: Checkpoint, max_positions: int) -> Model:
    """Build the model that a folder's config.json names: with code of ours, or else through transformers.

    Raises CannotStartError.
    """
    config = ModelConfig.from_folder(folder)
    config.expect(quantization_config=None)
    family = _FAMILIES.get(shape.architecture)
    if family is not None:
        model = family(ModelSource(config, shape, checkpoint, max_positions))
        _refuse_forgotten_weights(config, checkpoint)
        return model
    from engine.runner.models.transformers_fallback import load_through_transformers  # seconds, and only for these

    return load_through_transformers(config, shape, checkpoint)


def _refuse_forgotten_weights(config: ModelConfig, checkpoint: Checkpoint) -> None:
    """A layer with more weights than were used computes something else, whatever config.json says.

    Older files store the frequencies of the rotation, which follow from config.json.
    """
    layers = (name for prefix in TEXT_PREFIXES for name in checkpoint.not_taken(f"{prefix}layers."))
    forgotten = [name for name in layers if not name.endswith("inv_freq")]
    if forgotten:
        raise CannotStartError(
            f"{config.folder}: the weights have {forgotten[0]!r}, of which config.json says nothing; it may lack a "
            "setting such as attention_bias, or name the wrong architecture"
        )
