"""Journals are found when they appear, and a folder that stays as it is is not listed again."""

from __future__ import annotations

import os
import time
from pathlib import Path

from telemetry.events import ProcessStarted, Stage
from telemetry.journal import JournalOwner, JournalWriter
from telemetry.tail import Tail


def write_journal(folder: Path, name: str) -> None:
    writer = JournalWriter(folder / f"{name}.journal", JournalOwner(Stage.GATEWAY, "", 1, os.getpid()))
    writer.append(ProcessStarted(1, os.getpid()))
    writer.close()


def make_old(folder: Path, seconds: float = 60) -> None:
    then = time.time() - seconds
    os.utime(folder, (then, then))


def test_a_journal_that_appears_between_two_polls_is_read(tmp_path):
    tail = Tail(tmp_path, {})
    write_journal(tmp_path, "gateway.1")
    assert len(list(tail.poll())) == 1
    write_journal(tmp_path, "gateway.2")  # perhaps within the same step of the folder's time of change
    assert len(list(tail.poll())) == 1
    tail.close()


def test_a_folder_that_has_not_changed_for_long_is_not_listed_again(tmp_path, monkeypatch):
    write_journal(tmp_path, "gateway.1")
    make_old(tmp_path)
    tail = Tail(tmp_path, {})
    assert len(list(tail.poll())) == 1
    asked = []
    monkeypatch.setattr(Path, "glob", lambda *_: asked.append(1) or [])
    assert list(tail.poll()) == asked == []
    tail.close()


def test_a_journal_that_could_not_be_read_yet_is_tried_again(tmp_path):
    (tmp_path / "gateway.1.journal").touch()
    make_old(tmp_path)
    tail = Tail(tmp_path, {})
    assert list(tail.poll()) == []
    (tmp_path / "gateway.1.journal").unlink()
    write_journal(tmp_path, "gateway.1")
    make_old(tmp_path)
    assert len(list(tail.poll())) == 1
    tail.close()
