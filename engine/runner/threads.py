"""How torch's OpenMP threads behave. Must be decided before torch is imported."""

from __future__ import annotations

import os


def set_thread_environment(threads: int) -> None:
    """Set OMP_NUM_THREADS (0: one per usable core) and passive waiting for this process.

    By default OpenMP threads spin between parallel regions. A runner shares its cores with the other stages, and
    spinning threads then take the very cores that somebody needs: decode gets several times slower.
    """
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["OMP_NUM_THREADS"] = str(threads or len(os.sched_getaffinity(0)))
