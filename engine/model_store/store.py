"""From what ``--model`` says to a folder that can be served."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from engine.model_shape import DTYPE_BYTES, ModelShape
from engine.model_store.catalog import KNOWN_MODELS, KnownModel
from engine.model_store.converted import find_converted, make_converted
from engine.model_store.download import fetch_gguf
from engine.model_store.errors import ModelError
from engine.model_store.hashing import HashCache
from engine.model_store.hf_folder import check_folder
from engine.model_store.hub import fetch_from_hub, is_hub_id
from engine.model_store.progress import Progress
from engine.run_folder import ModelFiles


class ModelStatus(msgspec.Struct, frozen=True):
    """A known model, and what of it is in the cache: a row of ``vitrine model list``."""

    name: str
    description: str
    licence: str
    download_bytes: int
    cached_dtypes: list[str]
    cached_bytes: int


class ModelDetails(msgspec.Struct, frozen=True):
    """A model that is here: what ``vitrine model show`` shows."""

    files: ModelFiles
    shape: ModelShape
    dtype: str  # of the stored weights
    file_bytes: dict[str, int]


def resolve_model(name: str, dtype: str, cache: Path, progress: Progress) -> ModelFiles:
    """Make the model that `name` means ready to be served: fetched, converted, checked. Raises ModelError.

    `name` is a known name, a Hugging Face folder, a GGUF file or a Hub id, tried in that order; `dtype` is the
    number format of the copy made from a GGUF file (a folder's weights stay as they are).
    """
    try:
        return _resolve(name, dtype, cache, progress)
    except OSError as e:
        raise ModelError(f"cannot prepare {name}: {e.strerror or e} ({e.filename or cache})") from e


def list_models(cache: Path) -> list[ModelStatus]:
    """The models known by name."""
    return [_status(model, cache) for model in KNOWN_MODELS.values()]


def show_model(name: str, dtype: str, cache: Path, progress: Progress) -> ModelDetails:
    """Details of a model that is here; a known one is not fetched for it. Raises ModelError."""
    if name in KNOWN_MODELS and find_converted(_home(cache, name), dtype, name) is None:
        raise ModelError(f"{name} is not in the cache as {dtype}; fetch it with: vitrine model pull {name}")
    files = resolve_model(name, dtype, cache, progress)
    folder = Path(files.path)
    return ModelDetails(
        files=files,
        shape=ModelShape.from_folder(folder),
        dtype=_stored_dtype(folder),
        file_bytes={file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()},
    )


def _resolve(name: str, dtype: str, cache: Path, progress: Progress) -> ModelFiles:
    if name in KNOWN_MODELS:
        return _resolve_known(KNOWN_MODELS[name], dtype, cache, progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return _resolve_folder(path, path.resolve().name, cache, progress)
    if path.is_file():
        return _resolve_gguf(path, dtype, cache, progress)
    if is_hub_id(name):
        return _resolve_folder(fetch_from_hub(name, progress), name.split("/")[-1], cache, progress)
    raise ModelError(
        f"there is no model {name!r}: give a Hugging Face folder, a GGUF file, a Hub id (owner/model), "
        f"or one of {', '.join(KNOWN_MODELS)}"
    )


def _resolve_known(model: KnownModel, dtype: str, cache: Path, progress: Progress) -> ModelFiles:
    home = _home(cache, model.name)

    def source() -> tuple[Path, str]:
        return fetch_gguf(model, home, progress), model.gguf_sha256

    return make_converted(home, dtype, model.name, source, progress)


def _resolve_gguf(file: Path, dtype: str, cache: Path, progress: Progress) -> ModelFiles:
    with file.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise ModelError(f"{file} is not a GGUF file; --model takes a GGUF file or a Hugging Face folder")
    sha256 = _hash([file], cache, progress)
    name = re.sub(r"[^\w.-]", "-", file.stem)
    return make_converted(_home(cache, f"{name}-{sha256[:12]}"), dtype, name, lambda: (file, sha256), progress)


def _resolve_folder(folder: Path, name: str, cache: Path, progress: Progress) -> ModelFiles:
    weights = check_folder(folder)
    tokenizer = HashCache(_hash_file(cache)).sha256(folder / "tokenizer.json")
    return ModelFiles(name, str(folder.resolve()), _hash(weights, cache, progress), tokenizer)


def _hash(files: list[Path], cache: Path, progress: Progress) -> str:
    hashes = HashCache(_hash_file(cache))
    if all(hashes.knows(file) for file in files):
        return hashes.sha256_of_all(files)
    with progress.working(f"hashing {files[0].name}{' and others' if len(files) > 1 else ''}, once"):
        return hashes.sha256_of_all(files)


def _hash_file(cache: Path) -> Path:
    return cache / "hashes.json"


def _home(cache: Path, name: str) -> Path:
    return cache / "models" / name


def _status(model: KnownModel, cache: Path) -> ModelStatus:
    home = _home(cache, model.name)
    return ModelStatus(
        name=model.name,
        description=model.description,
        licence=model.licence,
        download_bytes=model.wheel_bytes,
        cached_dtypes=[dtype for dtype in DTYPE_BYTES if find_converted(home, dtype, model.name)],
        cached_bytes=sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) if home.exists() else 0,
    )


def _stored_dtype(folder: Path) -> str:
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")
