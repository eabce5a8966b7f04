"""Weights of a Hugging Face folder: safetensors files, memory-mapped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.process import CannotStartError

_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """The tensors of a folder by name, in the number format and on the device where they are wanted.

    A tensor that already has the format stays in the mapped file: no copy, and shared between processes.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Open all files. Raises CannotStartError when there is none, one is missing, or one is damaged."""
        self.dtype = dtype
        self.device = device
        self._folder = folder
        self._file_of: dict[str, Any] = {}  # tensor name → open file
        self._taken: set[str] = set()
        for path in _weight_files(folder):
            file = _open(path)
            self._file_of.update(dict.fromkeys(file.keys(), file))

    def under(self, prefix: str) -> Weights:
        """The tensors whose names begin with `prefix`."""
        return Weights(self, prefix)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._file_of

    def not_taken(self, prefix: str) -> list[str]:
        """Names below `prefix` that nobody has asked for, sorted."""
        return sorted(name for name in self._file_of.keys() - self._taken if name.startswith(prefix))

    def num_bytes(self) -> int:
        """Size of all tensors in the wanted number format."""
        return sum(map(math.prod, self.shapes().values())) * self.dtype.itemsize

    def shapes(self) -> dict[str, list[int]]:
        """The shape of every tensor, by name."""
        return {name: file.get_slice(name).get_shape() for name, file in self._file_of.items()}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor. Raises CannotStartError when it is missing or has another shape."""
        file = self._file_of.get(name)
        if file is None:
            raise CannotStartError(f"{self._folder}: the weights have no tensor {name!r}")
        self._taken.add(name)
        tensor: Tensor = file.get_tensor(name)
        if tensor.shape != shape:
            raise CannotStartError(
                f"{self._folder}: tensor {name!r} is {list(tensor.shape)}, but config.json asks for {list(shape)}"
            )
        return tensor.to(self.device, self.dtype)


class Weights:
    """The part of a checkpoint that belongs to one module: names are taken below a prefix."""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix

    def under(self, prefix: str) -> Weights:
        """A part of this part."""
        return Weights(self._checkpoint, self._prefix + prefix)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor. Raises CannotStartError when it is missing or has another shape."""
        return self._checkpoint.tensor(self._prefix + name, *shape)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.exists():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise CannotStartError(f"{folder}: there is no *.safetensors file")
        return files
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as e:
        raise CannotStartError(f"{index} is not an index of safetensors files: {e}") from e
    return [folder / name for name in sorted(names)]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except OSError as e:
        raise CannotStartError(f"cannot read the weights file {path}: {e.strerror or 'no such file'}") from e
    except SafetensorError as e:
        raise CannotStartError(f"the weights file {path} is damaged: {e}") from e
