"""The process itself: started as the supervisor starts it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest
import zmq
import zmq.asyncio

from engine.messages import Failed, Hello, Ready, Stop
from engine.process import CannotStartError, inherited_listener
from engine.run_folder import RunFolder, control_address
from engine.transport import decode_control, encode
from telemetry.events import ProcessStopping, Stage
from telemetry.journal import JournalReader
from tests.gateway.rig import make_run


async def start(folder: RunFolder, listener: socket.socket) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.gateway", "--run", str(folder.path)),
        *("--stage", "gateway", "--incarnation", "1"),
        pass_fds=[listener.fileno()],
        env={**os.environ, "VITRINE_LISTEN_FD": str(listener.fileno())},
    )


class Supervisor:
    def __init__(self, socket_dir: str) -> None:
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(control_address(socket_dir))
        self.peer = b""

    async def hear(self) -> object:
        async with asyncio.timeout(20):
            self.peer, frame = await self.socket.recv_multipart()
        return decode_control(frame)

    async def stop(self) -> None:
        await self.socket.send_multipart([self.peer, encode(Stop())])


async def test_it_serves_ignores_signals_and_stops_when_told(tmp_path: Path, socket_dir: str) -> None:
    folder = make_run(tmp_path, socket_dir)
    supervisor = Supervisor(socket_dir)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = await start(folder, listener)
        try:
            hello = await supervisor.hear()
            assert isinstance(hello, Hello) and (hello.stage, hello.pid) == (Stage.GATEWAY, process.pid)
            assert isinstance(await supervisor.hear(), Ready)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            async with httpx.AsyncClient(base_url=url) as client:
                assert (await client.get("/version")).headers["server"] == "vitrine"
                await supervisor.stop()
                assert await asyncio.wait_for(process.wait(), 10) == 0
        finally:
            if process.returncode is None:
                process.kill()
            supervisor.context.destroy(linger=0)
    records = list(JournalReader(folder.journals / "gateway.1.journal").read())
    assert isinstance(records[-1], ProcessStopping)


async def test_it_says_why_it_cannot_start(tmp_path: Path, socket_dir: str) -> None:
    folder = make_run(tmp_path, socket_dir)
    (tmp_path / "model" / "tokenizer.json").unlink()
    supervisor = Supervisor(socket_dir)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = await start(folder, listener)
        try:
            messages = [await supervisor.hear() for _ in range(2)]
            assert isinstance(messages[1], Failed) and "tokenizer.json" in messages[1].message
            assert await asyncio.wait_for(process.wait(), 10) == 3
        finally:
            if process.returncode is None:
                process.kill()
            supervisor.context.destroy(linger=0)


@pytest.mark.parametrize("value", ["", "x", "999"])
def test_a_missing_listener_is_told(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_LISTEN_FD", value)
    with pytest.raises(CannotStartError, match="VITRINE_LISTEN_FD"):
        inherited_listener()
