"""Short lines for the token log, a clock that stands still, and a kill at any system call."""

from __future__ import annotations

import contextlib
import json
import os
import time
from types import SimpleNamespace
from unittest import mock

_CHANGES = ("write", "ftruncate", "replace", "unlink", "utime")


class Clock:
    """Seconds since the epoch; moves when told to."""

    def __init__(self, now=None):
        self.now = time.time() if now is None else now

    def __call__(self):
        return self.now


def make_line(request_id, **fields):
    return json.dumps({"request_id": request_id, "index": 0, **fields}, separators=(",", ":")).encode() + b"\n"


def make_batch(*ids, **fields):
    """What `TokenLog.write` takes: requests of one sequence each."""
    one = [SimpleNamespace(index=0)]
    return [(SimpleNamespace(request_id=i, sequences=one), [make_line(i, **fields)]) for i in ids]


class Killed(BaseException):
    """The process is gone."""


class Process:
    """Runs functions until it is killed in one of their system calls; of a write, a part may have been done."""

    def __init__(self):
        self.calls_left = None  # None: it lives for ever
        self._fds = set()
        self._real = {name: getattr(os, name) for name in (*_CHANGES, "open", "close")}

    @contextlib.contextmanager
    def running(self):
        with contextlib.ExitStack() as stack:
            for name in self._real:
                stack.enter_context(mock.patch.object(os, name, getattr(self, f"_{name}", self._counted(name))))
            yield

    def end(self):
        """As the kernel does it: files are closed, and that is all."""
        for fd in self._fds:
            self._real["close"](fd)
        self._fds.clear()

    def _count(self):
        if self.calls_left is not None:
            if not self.calls_left:
                raise Killed
            self.calls_left -= 1

    def _counted(self, name):
        def call(*args, **settings):
            self._count()
            return self._real[name](*args, **settings)

        return call

    def _open(self, *args, **settings):
        self._count()
        fd = self._real["open"](*args, **settings)
        self._fds.add(fd)
        return fd

    def _write(self, fd, data):
        try:
            self._count()
        except Killed:
            self._real["write"](fd, data[: len(data) // 2])
            raise
        return self._real["write"](fd, data)

    def _close(self, fd):
        self._fds.discard(fd)
        self._real["close"](fd)
