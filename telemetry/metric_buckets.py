"""Upper bounds of the histograms' buckets: those of the conventions where there are any, and finer ones between."""

from __future__ import annotations

from collections.abc import Iterable


def grid(low: float, high: float, steps: Iterable[float] = (1, 1.5, 2, 3, 5, 7)) -> tuple[float, ...]:
    """Bounds from `low` to `high`, at `steps` of each power of ten."""
    bounds = (float(f"{step}e{exponent}") for exponent in range(-5, 7) for step in steps)
    return tuple(bound for bound in bounds if low <= bound <= high)


def powers_of_two(high: int) -> tuple[float, ...]:
    """1, 2, 4 … `high`."""
    return tuple(float(1 << i) for i in range(high.bit_length()))


CONVENTION_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
DURATION = tuple(
    sorted(
        {0.001, 0.002, 0.003, 0.005, 0.007, 163.84, 327.68, 655.36}
        | {b * k for b in CONVENTION_DURATION for k in (1, 1.5)}
    )
)
CONVENTION_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TTFT = tuple(
    sorted({*CONVENTION_TTFT, 0.0015, 0.002, 0.003, 0.007, 0.015, 0.03, 0.15, 0.2, 0.35, 1.5, 2.0, 3.5, *grid(15, 300)})
)
CONVENTION_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TPOT = tuple(sorted({*grid(0.0005, 0.007), *CONVENTION_TPOT, 0.015, 0.02, 0.03, 0.04, 0.06, 1.5, 5.0, 10.0}))
ITL = grid(0.0005, 10)
STAGE = grid(0.0001, 300)
STEP = grid(0.0005, 30)
TOKENS = powers_of_two(1 << 17)
