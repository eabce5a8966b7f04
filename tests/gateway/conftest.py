from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.messages import Ready
from tests.gateway.rig import FakeReplica, Rig

MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
def socket_dir() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="vg")
    yield folder
    shutil.rmtree(folder)


@pytest_asyncio.fixture
async def make_rig(tmp_path: Path, socket_dir: str) -> AsyncIterator[MakeRig]:
    rigs: list[Rig] = []

    async def make(**settings: Any) -> Rig:
        rig = Rig(tmp_path, socket_dir, **settings)
        rigs.append(rig)
        await rig.hear(Ready)
        return rig

    yield make
    for rig in rigs:
        await rig.close()


@pytest_asyncio.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """A gateway with one ready replica that answers at once."""
    rig = await make_rig()
    await rig.direct(rig.replica().entry())
    return rig


@pytest.fixture
def replica(rig: Rig) -> FakeReplica:
    """The one replica of `rig`, which answers nothing by itself."""
    rig.replicas[0].script = None
    return rig.replicas[0]
