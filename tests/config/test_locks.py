from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements if not line.startswith("-"))
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}


def locked(file: str) -> set[str]:
    return names((ROOT / file).read_text().splitlines())


def test_what_serving_needs_is_pinned_but_for_torch():
    assert names(project()["dependencies"]) - locked("requirements.lock") == {"torch"}


def test_what_developing_needs_is_pinned_apart():
    development = names(project()["optional-dependencies"]["dev"])
    assert development <= locked("requirements-dev.lock")
    assert not locked("requirements.lock") & locked("requirements-dev.lock")
