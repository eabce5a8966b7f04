"""config.json as the families read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.model_shape import text_config
from engine.process import CannotStartError


class ModelConfig:
    """The fields of a folder's config.json (of its text part, where a model has several)."""

    def __init__(self, folder: Path, fields: Mapping[str, Any]) -> None:
        self.folder = folder
        self._fields = fields

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read config.json. Raises OSError or ValueError."""
        return cls(folder, text_config(json.loads((folder / "config.json").read_text())))

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or `default` where it is not there. A null is a value."""
        return self._fields.get(name, default)

    def expect(self, **known: Any) -> None:
        """Raises CannotStartError unless each field is absent or has the value given here."""
        for name, value in known.items():
            found = self.get(name, value)
            if found != value:
                raise self.refusal(f"{name} {found!r}; only {value!r} is supported")

    def refusal(self, what: str) -> CannotStartError:
        """The error that says what in config.json cannot be served."""
        return CannotStartError(f"{self.folder}: config.json has {what}")

    def per_layer(self, name: str, default: list[Any]) -> list[Any]:
        """A field with a value for every layer; `default` stands for an absent or null one.

        Raises CannotStartError when it has another length.
        """
        found = self.get(name)
        if found is None:
            return default
        if len(found) < len(default):
            raise self.refusal(f"{len(found)} {name} for {len(default)} layers")
        return list(found[: len(default)])

    def windows(self, layer_types: list[str], window: int | None) -> list[int | None]:
        """The sliding window of every layer: `window` where config.json, or else `layer_types`, says so.

        Raises CannotStartError for other kinds of layers.
        """
        kinds = {"full_attention": None, "sliding_attention": window}
        found = self.per_layer("layer_types", layer_types)
        for kind in found:
            if kind not in kinds or (kind == "sliding_attention" and not window):
                raise self.refusal(f"a layer of type {kind!r} and sliding_window {window!r}, which is not supported")
        return [kinds[kind] for kind in found]
