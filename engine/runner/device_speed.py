"""What the device reaches: a large matrix product and a long read, measured once and kept.

Kept in the cache folder, by all that the figures depend on. Replicas that start together measure one after the
other, the later ones find the figures of the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch.nn import functional

from engine.runner.models.layers import projection
from telemetry.events import DeviceSpeed

FOLDER = "device-speed"
_READ_BYTES = 256 << 20
_ROWS, _SIZE = 512, 2048
_REPETITIONS = 5


class _Saved(msgspec.Struct):
    """The file, for people too."""

    device: str
    measured_ts: float
    speed: DeviceSpeed


def device_speed(cache: Path, device: torch.device, dtype: torch.dtype) -> DeviceSpeed:
    """The figures of this device, measured (for less than a second) unless `cache` has them. Raises OSError."""
    description = describe(device, dtype)
    folder = cache / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (hashlib.sha256(description.encode()).hexdigest()[:16] + ".json")
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        saved = _read(file)
        if saved is None or saved.device != description:
            saved = _Saved(description, time.time(), measure(device, dtype))
            _write(file, saved)
    return saved.speed


def describe(device: torch.device, dtype: torch.dtype) -> str:
    """All that the figures depend on, in words."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return f"{name}, {device.type}, {torch.get_num_threads()} threads, {dtype}, torch {torch.__version__}"


def measure(device: torch.device, dtype: torch.dtype) -> DeviceSpeed:
    """Measure both, each the best of a few repetitions: what it can do, not what it does on a bad day."""
    with torch.inference_mode():
        return DeviceSpeed(flops_per_s=_product_flops_per_s(device, dtype), read_bytes_per_s=_read_bytes_per_s(device))


def _product_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """``[512, 2048] × [2048, 2048]``, the way the models multiply."""
    multiply = projection(torch.rand(_SIZE, _SIZE, device=device).to(dtype))
    rows = torch.rand(_ROWS, _SIZE, device=device).to(dtype)
    return 2 * _ROWS * _SIZE * _SIZE / _best_s(lambda: multiply(rows), device)


def _read_bytes_per_s(device: torch.device) -> float:
    """The faster of a sum and of the product of a matrix with one row, each over 256 MiB."""
    block = torch.zeros(_READ_BYTES // (_SIZE * 4), _SIZE, device=device)
    row = torch.zeros(1, _SIZE, device=device)
    return _READ_BYTES / min(_best_s(block.sum, device), _best_s(lambda: functional.linear(row, block), device))


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(_REPETITIONS):
        _wait_for(device)
        started = time.perf_counter()
        work()
        _wait_for(device)
        best = min(best, time.perf_counter() - started)
    return best


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cpu_name() -> str:
    """The model's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _read(file: Path) -> _Saved | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Saved)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(file: Path, saved: _Saved) -> None:
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(saved))
    part.replace(file)
