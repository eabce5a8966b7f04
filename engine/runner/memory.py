"""Is there room for the weights and the KV pool? Asked before anything is allocated."""

from __future__ import annotations

import psutil
import torch

from engine.config import Config
from engine.process import CannotStartError


def available_bytes(device: torch.device) -> int:
    """Memory that can still be had on `device`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def check_memory(weights_bytes: int, kv_pool_bytes: int, available: int, config: Config) -> None:
    """Raises CannotStartError, with the numbers and the flag to change, when it does not fit.

    Linux grants memory that it does not have, and kills the process that touches it: no allocation would fail.
    """
    if weights_bytes + kv_pool_bytes <= available:
        return
    raise CannotStartError(
        f"not enough memory: the weights need {_size(weights_bytes)} and the KV pool {_size(kv_pool_bytes)}, "
        f"but only {_size(available)} is available; {_advice(weights_bytes, available, config)}"
    )


def _advice(weights_bytes: int, available: int, config: Config) -> str:
    if weights_bytes < available:
        return "lower --kv-blocks" if config.kv_blocks else "lower --kv-cache-memory"
    return "use --dtype bfloat16" if config.dtype == "float32" else "choose a smaller --model"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
