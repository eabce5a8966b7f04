from __future__ import annotations

import os

import pytest

from tests.cli.helpers import CommandLine


@pytest.fixture
def vitrine(capsys, monkeypatch) -> CommandLine:
    for name in [name for name in os.environ if name.startswith("VITRINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    return CommandLine(capsys)
