"""Process logs: JSON lines through structlog, one file per process under ``logs/``.

Every line has ts, level, stage, replica, event; request_id and trace_id where they are known. Files are
opened for appending and written in whole lines, so that a killed process tears none.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import structlog

from telemetry.events import Stage


def configure(folder: Path, level: str, stage: Stage, replica: str, incarnation: int) -> None:
    """Send this process's structlog events, and the standard library's warnings, to its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{replica + '.' if replica else ''}{stage}.jsonl"
    set_level(level)
    structlog.configure(
        processors=[
            _drop_below_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(_LogFile(path)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(stage=str(stage), replica=replica, incarnation=incarnation)
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)


def set_level(level: str) -> None:
    """What this process logs from now on: ``debug``, ``info``, ``warning`` or ``error``, and above."""
    _threshold.severity = getattr(logging, level.upper())


class _Threshold:
    """The one thing of logging that changes while a process runs."""

    severity = logging.INFO


_threshold = _Threshold()


def _drop_below_level(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    severity = logging.ERROR if method == "exception" else getattr(logging, method.upper(), logging.CRITICAL)
    if severity < _threshold.severity:
        raise structlog.DropEvent
    return event


class _LogFile:
    """Appends whole lines. A full disk costs log lines, never the stage that writes them."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Nothing is held back."""


class _Forward(logging.Handler):
    """Libraries log through the standard library; their lines become events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None
        )
