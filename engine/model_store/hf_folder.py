"""Local Hugging Face folders: whether one can be served, said before any process is started."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from engine.model_shape import ModelShape
from engine.model_store.errors import ModelError

_HEADER_LENGTH = struct.Struct("<Q")


def check_folder(folder: Path) -> list[Path]:
    """Check configuration, tokenizer and weights of `folder`; returns its weight files. Raises ModelError."""
    _check_config(folder)
    _check_tokenizer(folder)
    weights = _weight_files(folder)
    for file in weights:
        _check_safetensors(file)
    return weights


def _check_config(folder: Path) -> None:
    try:
        ModelShape.from_folder(folder)
    except FileNotFoundError:
        raise ModelError(f"{folder} has no config.json: it is not a Hugging Face model folder") from None
    except (KeyError, TypeError, IndexError, ValueError) as e:
        reason = f"{e.args[0]!r} is missing" if isinstance(e, KeyError) else str(e)
        raise ModelError(f"{folder}/config.json does not describe a decoder-only model: {reason}") from None


def _check_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    if file.exists():
        try:
            json.loads(file.read_bytes())
        except ValueError as e:
            raise ModelError(f"{file} is not valid JSON: {e}") from None
    elif (folder / "tokenizer.model").exists():
        raise ModelError(
            f"{folder} has only a SentencePiece tokenizer (tokenizer.model), and tokenizer.json is needed: "
            "load it with transformers' AutoTokenizer and save_pretrained() it into the folder"
        )
    else:
        raise ModelError(f"{folder} has no tokenizer.json")


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            files = [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError):
            raise ModelError(f"{index} is damaged: it should map weights to files") from None
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise ModelError(f"{folder} lacks {missing[0]}, which model.safetensors.index.json names")
    if not files and any(folder.glob("*.bin")):
        raise ModelError(f"{folder} has only pickled weights (*.bin): save them as safetensors with transformers")
    if not files:
        raise ModelError(f"{folder} has no weights (*.safetensors)")
    return files


def _check_safetensors(file: Path) -> None:
    """Compare the length that the header promises with the file's: finds what was cut short or overwritten."""
    try:
        with file.open("rb") as f:
            (length,) = _HEADER_LENGTH.unpack(f.read(_HEADER_LENGTH.size))
            header = json.loads(f.read(min(length, file.stat().st_size)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{file} is damaged: it is not a safetensors file") from None
    expected = _HEADER_LENGTH.size + length + max(ends, default=0)
    if file.stat().st_size != expected:
        raise ModelError(f"{file} is damaged: it has {file.stat().st_size} bytes and should have {expected}")
