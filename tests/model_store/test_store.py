from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from engine.config import DEFAULT_MODEL
from engine.model_store import ModelError, PlainProgress, list_models, resolve_model, show_model
from engine.model_store.hashing import HashCache, sha256_of
from tests.factories import byte_level_tokenizer, default_model, write_tokenizer_folder
from tests.model_zoo import FALLBACK_FAMILIES, FAMILIES, make_model_folder

QUIET = PlainProgress(io.StringIO())


def safetensors(num_bytes: int = 8) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [num_bytes // 4], "data_offsets": [0, num_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(num_bytes)


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "My-Model"
    write_tokenizer_folder(folder, byte_level_tokenizer())
    (folder / "model.safetensors").write_bytes(safetensors())
    return folder


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def resolve(name: str | Path, cache: Path):
    return resolve_model(str(name), "bfloat16", cache, QUIET)


def refusal(name: str | Path, cache: Path) -> str:
    with pytest.raises(ModelError) as caught:
        resolve(name, cache)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_local_folder_is_served_as_it_is(folder, cache):
    files = resolve(folder, cache)
    assert (files.name, files.path) == ("My-Model", str(folder))
    assert files.weights_sha256 == sha256_of(folder / "model.safetensors")
    assert files.tokenizer_sha256 == sha256_of(folder / "tokenizer.json")


def test_shards_have_one_hash_together(folder, cache):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes(safetensors(12))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    first = resolve(folder, cache).weights_sha256
    (folder / "b.safetensors").write_bytes(safetensors(16))
    assert resolve(folder, cache).weights_sha256 != first
    (folder / "b.safetensors").unlink()
    assert "lacks b.safetensors" in refusal(folder, cache)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "config.json does not describe"),
        ("config.json", "{}", "'num_attention_heads' is missing"),
        ("config.json", "[]", "config.json does not describe"),
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "not valid JSON"),
        ("model.safetensors", None, "no weights"),
        ("model.safetensors", "short", "damaged"),
        ("model.safetensors", safetensors()[:-1], "damaged: it has"),
        ("model.safetensors", b"\xff" * 100, "damaged"),
        ("model.safetensors.index.json", "{}", "damaged"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_reason(folder, cache, file, content, complaint):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert complaint in refusal(folder, cache)


def test_sentencepiece_alone_is_refused_with_the_remedy(folder, cache):
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    assert "only a SentencePiece tokenizer" in refusal(folder, cache)


def test_pickled_weights_are_refused(folder, cache):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled" in refusal(folder, cache)


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/folder", "./nothing.gguf"])
def test_an_unknown_name_is_refused_with_what_there_is(name, cache):
    message = refusal(name, cache)
    assert "there is no model" in message
    assert DEFAULT_MODEL in message


def test_a_file_that_is_no_gguf_is_refused(folder, cache):
    assert "is not a GGUF file" in refusal(folder / "tokenizer.json", cache)


def test_a_cache_that_cannot_be_written_is_one_line_of_error(folder, tmp_path):
    (tmp_path / "file").write_text("")
    assert "File exists" in refusal(folder, tmp_path / "file")


def test_a_hub_id_is_fetched_and_named_by_its_last_part(folder, cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, allow_patterns: str(folder))
    files = resolve("owner/Some-Model", cache)
    assert (files.name, files.path) == ("Some-Model", str(folder))


def test_an_unreachable_hub_is_one_line_of_error(cache, monkeypatch):
    def unreachable(name, allow_patterns):
        raise OSError("Name or service not known.\nAnd much more.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    assert "Hub: Name or service not known; check" in refusal("owner/model", cache)


def test_hashes_are_computed_again_only_when_the_file_changed(tmp_path, monkeypatch):
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = HashCache(tmp_path / "hashes.json").sha256(file)
    with monkeypatch.context() as patch:
        patch.setattr("engine.model_store.hashing.sha256_of", lambda path: pytest.fail("read again"))
        assert HashCache(tmp_path / "hashes.json").sha256(file) == first
    file.write_bytes(b"three")
    assert HashCache(tmp_path / "hashes.json").sha256(file) != first
    (tmp_path / "hashes.json").write_text("{")
    assert HashCache(tmp_path / "hashes.json").sha256(file) == sha256_of(file)


def test_known_models_are_listed_and_shown_only_when_here(cache):
    [model] = list_models(cache)
    assert (model.name, model.cached_dtypes, model.cached_bytes) == (DEFAULT_MODEL, [], 0)
    with pytest.raises(ModelError, match=f"vitrine model pull {DEFAULT_MODEL}"):
        show_model(DEFAULT_MODEL, "bfloat16", cache, QUIET)


def test_a_folder_is_shown_with_shape_and_files(folder, cache):
    details = show_model(str(folder), "bfloat16", cache, QUIET)
    assert details.shape.num_layers == 2
    assert details.dtype == "float32"
    assert details.file_bytes["model.safetensors"] == (folder / "model.safetensors").stat().st_size


def test_a_start_with_a_cached_model_imports_neither_torch_nor_transformers():
    cache = Path(default_model().path).parents[2]
    code = (
        "import sys, pathlib; from engine.model_store import resolve_model, progress_on_stderr; "
        f"resolve_model('{DEFAULT_MODEL}', 'bfloat16', pathlib.Path({str(cache)!r}), progress_on_stderr()); "
        "print([m for m in ('torch', 'transformers', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("family", FAMILIES + FALLBACK_FAMILIES)
def test_a_model_of_every_family_is_shown(tmp_path, family):
    details = show_model(str(make_model_folder(family, tmp_path / family)), "float32", tmp_path / "cache", QUIET)
    shape = details.shape
    assert (shape.num_layers, shape.num_kv_heads, shape.max_positions, shape.eos_token_ids) == (4, 2, 256, (1,))
    assert details.dtype == "float32"
