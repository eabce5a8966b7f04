"""Upper bounds of the histograms' buckets: those of the conventions where there are any, and more between them."""

from __future__ import annotations

import itertools
import math

WIDEST = 1.3
"""Upper / lower bound of a bucket of a latency at most: a quantile read from it is within 30 % of the true one."""


def refined(*bounds: float) -> tuple[float, ...]:
    """`bounds`, and between them as many more as it takes for no bucket to be wider than `WIDEST`."""
    made = [bounds[0]]
    for low, high in itertools.pairwise(bounds):
        parts = math.ceil(math.log(high / low, WIDEST) - 1e-9)
        made += [float(f"{low * (high / low) ** (part / parts):.3g}") for part in range(1, parts)]
        made.append(high)
    return tuple(made)


def powers_of_two(high: int) -> tuple[float, ...]:
    """1, 2, 4 … `high`."""
    return tuple(float(1 << i) for i in range(high.bit_length()))


CONVENTION_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
CONVENTION_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
CONVENTION_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

DURATION = refined(0.001, *CONVENTION_DURATION, 163.84, 327.68, 655.36)
TTFT = refined(*CONVENTION_TTFT, 100.0, 300.0)
TPOT = refined(0.0005, 0.001, *CONVENTION_TPOT, 10.0)
ITL = refined(0.0005, 0.001, 0.01, 0.1, 1.0, 10.0)
STAGE = refined(0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 300.0)
STEP = refined(0.0005, 0.001, 0.01, 0.1, 1.0, 10.0, 30.0)
TOKENS = powers_of_two(1 << 17)
