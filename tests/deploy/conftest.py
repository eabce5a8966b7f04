from __future__ import annotations

import subprocess

import pytest

from tests.programs import find_program


@pytest.fixture(scope="session")
def promtool():
    """Runs promtool; returns what it printed. Fails with that when promtool does."""
    program = find_program("promtool", package="prometheus")

    def run(*arguments: object) -> str:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said

    return run
