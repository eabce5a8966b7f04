from __future__ import annotations

import io
import re
import threading
from pathlib import Path

import pytest

from engine.model_store import PlainProgress, converted
from engine.model_store.converted import find_converted, make_converted

QUIET = PlainProgress(io.StringIO())


@pytest.fixture
def converter(monkeypatch):
    """A stand-in for the converter's process; the list of what it was asked for."""
    calls: list[Path] = []

    def run(gguf: Path, target: Path, dtype: str) -> None:
        calls.append(target)
        (target / "tokenizer.json").write_text("{}")
        (target / "model.safetensors").write_text(dtype * 10)

    monkeypatch.setattr(converted, "_run_converter", run)
    return calls


def make(folder: Path, dtype: str = "float32"):
    return make_converted(folder, dtype, "tiny", lambda: (Path("tiny.gguf"), "abc"), QUIET)


def test_a_copy_is_made_once_for_each_dtype(tmp_path, converter):
    first = make(tmp_path)
    assert make(tmp_path) == first == find_converted(tmp_path, "float32", "tiny")
    assert make(tmp_path, "bfloat16") != first
    assert len(converter) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bfloat16", "float32", "lock"]


def test_of_two_that_start_together_one_converts(tmp_path, converter):
    results = []
    threads = [threading.Thread(target=lambda: results.append(make(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(converter) == 1
    assert results == [results[0]] * 4


def test_who_waits_is_told(tmp_path, converter):
    said = io.StringIO()
    with converted._locked(tmp_path, QUIET):
        waiting = threading.Thread(
            target=lambda: make_converted(tmp_path, "float32", "tiny", lambda: (Path("x"), "abc"), PlainProgress(said))
        )
        waiting.start()
        while "waiting for another process" not in said.getvalue():
            waiting.join(0.01)
    waiting.join()
    assert len(converter) == 1


def test_an_interrupted_conversion_leaves_nothing_and_is_repeated(tmp_path, converter, monkeypatch):
    def interrupted(gguf: Path, target: Path, dtype: str) -> None:
        (target / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(converted, "_run_converter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]
    make(tmp_path)


def test_what_a_killed_process_left_is_removed(tmp_path, converter):
    (tmp_path / ".partial-killed").mkdir()
    make(tmp_path)
    assert not (tmp_path / ".partial-killed").exists()


@pytest.mark.parametrize("damage", ["shorter", "gone", "manifest", "format"])
def test_a_damaged_copy_is_made_again(tmp_path, converter, damage):
    copy = Path(make(tmp_path).path)
    match damage:
        case "shorter":
            (copy / "model.safetensors").write_text("x")
        case "gone":
            (copy / "tokenizer.json").unlink()
        case "manifest":
            (copy / "vitrine.json").write_text("{")
        case "format":
            manifest = copy / "vitrine.json"
            manifest.write_text(re.sub(r'"format": \d+', '"format": 0', manifest.read_text()))
    assert find_converted(tmp_path, "float32", "tiny") is None
    make(tmp_path)
    assert len(converter) == 2
