from __future__ import annotations

import pytest

from engine import cli


class CommandLine:
    """Runs `vitrine …` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        status = cli.run(arguments)
        out, err = self._capsys.readouterr()
        return status, out, err

    def refusal(self, *arguments: str) -> str:
        """The one line that a failing command writes."""
        status, out, err = self(*arguments)
        assert status in (1, 2)
        assert out == ""
        assert err.startswith("vitrine: ") and err.count("\n") == 1
        return err
