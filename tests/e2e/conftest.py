"""Real processes, the real model."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.e2e.exact_counts", "tests.e2e.scrapes")

from tests.e2e.served import Served  # noqa: E402


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/e2e" in str(item.path):
            item.add_marker("e2e")


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """One engine in float32 for the tests that leave it as they found it."""
    with Served(tmp_path_factory.mktemp("shared"), "--dtype", "float32") as served:
        yield served


@pytest.fixture
def serve(tmp_path):
    """Start an engine with flags; it is ended with the test whatever happens."""
    started = []

    def start(*flags: str, wait: bool = True, env: dict[str, str] | None = None) -> Served:
        started.append(Served(tmp_path / f"data{len(started)}", *flags, env=env))
        return started[-1].wait_ready() if wait else started[-1]

    yield start
    for served in started:
        served.close()
