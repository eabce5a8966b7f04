"""What every child process has in common: its name, its files, its line to the supervisor, its loop.

A child is started as ``python -m <package> --run FOLDER --stage S [--replica R] --incarnation N``. It

* dies with the supervisor (parent-death signal, so that even ``kill -9`` of the supervisor leaves no orphan),
* ignores SIGINT and SIGTERM (the supervisor decides who ends when, by message),
* says Hello, then Ready or Failed, and obeys Stop,
* beats: every turn of its loop stamps the heartbeat in its gauge page.

Stages without an event loop derive from `SyncStage`; asyncio ones use `ProcessContext` and `ControlLine`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import setproctitle
import structlog
import zmq

from engine import logs
from engine.messages import (
    ControlMessage,
    DataMessage,
    Directory,
    Failed,
    Hello,
    Ready,
    SetLogLevel,
    Stop,
)
from engine.run_folder import RunFolder, control_address, inbox_address, process_name
from engine.transport import Inbox, decode_control, encode, quiet
from telemetry.events import Compute, ProcessStarted, ProcessStopping, Record, Stage
from telemetry.gauges import SUFFIX as GAUGES_SUFFIX
from telemetry.gauges import Gauge, GaugePage, PageOwner
from telemetry.journal import SUFFIX as JOURNAL_SUFFIX
from telemetry.journal import JournalOwner, JournalWriter

_PR_SET_PDEATHSIG = 1
BEAT_INTERVAL_S = 0.25
LISTEN_FD_VARIABLE = "VITRINE_LISTEN_FD"
"""Environment variable with the number of an inherited, listening socket."""

EXIT_FAILED = 3
"""Exit code of a child that said Failed: trying again will not help."""


class CannotStartError(Exception):
    """The stage cannot start; the message is one clear line for the operator."""


def inherited_listener() -> socket.socket:
    """The listening socket that the supervisor bound. Raises CannotStartError."""
    try:
        return socket.socket(fileno=int(os.environ[LISTEN_FD_VARIABLE]))
    except (KeyError, ValueError, OSError) as e:
        raise CannotStartError(f"{LISTEN_FD_VARIABLE} does not name a listening socket: {e}") from e


class Journal:
    """A journal that may be switched off (``--telemetry off``)."""

    def __init__(self, writer: JournalWriter | None, gauges: GaugePage) -> None:
        self._writer = writer
        self._gauges = gauges

    def append(self, record: Record) -> None:
        """Append one record, or nothing when telemetry is off."""
        if self._writer is None:
            return
        self._writer.append(record)
        if self._writer.dropped:
            self._gauges.set(Gauge.JOURNAL_DROPPED, self._writer.dropped)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class ProcessContext:
    """Who this process is, and its files."""

    def __init__(self, folder: RunFolder, stage: Stage, replica: str, incarnation: int) -> None:
        self.folder = folder
        self.run = folder.info()
        self.config = self.run.config
        self.stage = stage
        self.replica = replica
        self.incarnation = incarnation
        self.zmq: zmq.Context[Any] = zmq.Context()
        pid = os.getpid()
        name = process_name(stage, replica, incarnation)
        self.gauges = GaugePage(folder.gauges / (name + GAUGES_SUFFIX), PageOwner(stage, replica, incarnation, pid))
        self.journal = Journal(self._journal_writer(name, pid), self.gauges)
        self.journal.append(ProcessStarted(time.monotonic_ns(), pid))
        self.gauges.beat()
        self.log: Any = structlog.get_logger()

    def _journal_writer(self, name: str, pid: int) -> JournalWriter | None:
        if self.config.telemetry == "off":
            return None
        return JournalWriter(
            self.folder.journals / (name + JOURNAL_SUFFIX),
            JournalOwner(self.stage, self.replica, self.incarnation, pid),
        )

    @property
    def inbox_address(self) -> str:
        """Where this process's inbox is."""
        return inbox_address(self.run.socket_dir, self.stage, self.replica, self.incarnation)

    def close(self) -> None:
        """Say the orderly end in the journal, and close all."""
        self.journal.append(ProcessStopping(time.monotonic_ns()))
        self.journal.close()
        self.zmq.destroy(linger=500)


class ControlLine:
    """The DEALER socket to the supervisor."""

    def __init__(self, context: ProcessContext) -> None:
        self.socket = context.zmq.socket(zmq.DEALER)
        quiet(self.socket)
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.connect(control_address(context.run.socket_dir))
        self.send(Hello(context.stage, context.replica, context.incarnation, os.getpid()))

    def send(self, message: ControlMessage) -> None:
        """Queue a message to the supervisor."""
        self.socket.send(encode(message), zmq.NOBLOCK)

    def take(self) -> list[ControlMessage]:
        """All messages that are here now; what every process does with one is done here."""
        messages: list[ControlMessage] = []
        while True:
            try:
                message = decode_control(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return messages
            if isinstance(message, SetLogLevel):
                logs.set_level(message.level)
            else:
                messages.append(message)


class SyncStage:
    """A stage with a plain loop: wait for messages, handle all of them, beat.

    Subclasses say in `start` what must be ready before Ready, and handle messages in `on_messages`. All
    messages that wait are handed over at once, so that one wake-up serves many requests.
    """

    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        self.gauges = context.gauges
        self.journal = context.journal
        self.log = context.log
        self.inbox = Inbox(context.zmq, context.inbox_address)
        self.control = ControlLine(context)
        self._poller = zmq.Poller()
        self._poller.register(self.inbox.socket, zmq.POLLIN)
        self._poller.register(self.control.socket, zmq.POLLIN)
        self.compute: Compute | None = None  # for Ready; a runner's
        self._stopping = False

    def start(self) -> dict[str, str]:
        """Load what is needed; returns the facts for Ready. Raises CannotStartError."""
        return {}

    def on_messages(self, messages: list[DataMessage]) -> None:
        """Handle everything that has arrived, in order."""
        raise NotImplementedError

    def on_directory(self, directory: Directory) -> None:
        """Somebody came, went or changed."""

    def on_control(self, message: ControlMessage) -> None:
        """The supervisor says something that only some stages understand."""
        self.log.warning("unexpected control message", message=type(message).__name__)

    def on_turn(self) -> None:
        """Called at the end of each turn of the loop, with or without messages."""

    def finish(self) -> None:
        """Called once before an orderly exit."""

    def outbox_address(self, stage: Stage) -> str:
        """The inbox of another stage of this replica, or of the gateway."""
        replica = "" if stage is Stage.GATEWAY else self.context.replica
        return inbox_address(self.context.run.socket_dir, stage, replica, self.context.incarnation)

    def run(self) -> None:
        """Start, then loop until told to stop."""
        facts = self.start()
        self.gauges.set(Gauge.READY, 1)
        self.gauges.beat()
        self.control.send(Ready(facts, self.compute))
        while not self._stopping:
            self._turn()
        self.finish()

    def _turn(self) -> None:
        self._poller.poll(int(BEAT_INTERVAL_S * 1000))
        started = time.monotonic_ns()
        for message in self.control.take():
            self._on_control(message)
        messages = self.inbox.take()
        if messages:
            self.gauges.add(Gauge.TAKEN, len(messages))
            self.on_messages(messages)
        self.on_turn()
        if messages:
            self.gauges.add(Gauge.BUSY_NS, time.monotonic_ns() - started)
        self.gauges.beat()

    def _on_control(self, message: ControlMessage) -> None:
        match message:
            case Directory():
                self.on_directory(message)
            case Stop():
                self._stopping = True
            case _:
                self.on_control(message)


def run_child(main: Callable[[ProcessContext], None]) -> None:
    """Entry point of every child: set the process up, run `main`, and report how it could not start."""
    args = _arguments()
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stage = Stage(args.stage)
    setproctitle.setproctitle(f"vitrine {args.replica + ' ' if args.replica else ''}{stage}")
    folder = RunFolder(Path(args.run))
    config = folder.info().config
    logs.configure(config.data_path / "logs", config.log_level, stage, args.replica, args.incarnation)
    context = ProcessContext(folder, stage, args.replica, args.incarnation)
    try:
        main(context)
    except CannotStartError as e:
        context.log.error("cannot start", reason=str(e))
        ControlLine(context).send(Failed(str(e)))
        context.close()
        sys.exit(EXIT_FAILED)
    except Exception:
        context.log.exception("stage failed")
        context.journal.close()
        raise
    context.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A child process of vitrine serve.")
    parser.add_argument("--run", required=True)
    parser.add_argument("--stage", required=True, choices=[str(s) for s in Stage])
    parser.add_argument("--replica", default="")
    parser.add_argument("--incarnation", type=int, required=True)
    return parser.parse_args()


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the supervisor ends, however it ends (Linux: prctl(2))."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        sys.exit("the supervisor is gone")
