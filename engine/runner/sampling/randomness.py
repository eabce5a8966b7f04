"""Random numbers without state: a function of (seed, position), so that a token's draw depends on nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) per (seed, position), with all 53 bits of a float64.

    Position p is the p-th output of the SplitMix64 generator (Steele, Lea, Flood, 2014) whose state is the mixed
    seed: the seeds of the choices of one request are neighbours, and mixing first makes their streams unrelated.
    """
    bits = _mix(_mix(seeds) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function: a bijection in which every input bit changes about half of the output."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
