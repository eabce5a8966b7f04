from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dashboard.app import create_app
from dashboard.hub import Hub
from tests.dashboard.factories import World, full_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return full_world(tmp_path)


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with client_of(world) as client:
        yield client


def client_of(world: World) -> TestClient:
    return TestClient(create_app(world.sources(), Hub()), base_url="http://127.0.0.1:8001", follow_redirects=False)
