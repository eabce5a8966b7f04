"""Programs that some tests need and pip cannot install."""

from __future__ import annotations

import os
import shutil

import pytest


def find_program(*names: str, package: str) -> str:
    """The path of the first that there is. Without one the test is skipped, except in CI, where that is a failure."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        advice = f"{names[0]} is not installed: apt-get install {package} (make test-deps installs all that tests need)"
        pytest.fail(advice) if os.environ.get("CI") else pytest.skip(advice)
    return found
