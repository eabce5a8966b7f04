"""What a row of the metric table is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """Prometheus types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Values = Mapping[str, str]
"""Values of a label, and what each means."""


class Metric(msgspec.Struct, frozen=True):
    """One row.

    ``initial`` are the values of ``labels`` that exist (with 0) from a replica's start; ``values`` says of a label
    what its values mean, where they do not explain themselves.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()  # besides `common`
    common: tuple[str, ...] = ("model", "replica")
    buckets: tuple[float, ...] = ()
    initial: tuple[tuple[str, ...], ...] = ()
    values: Mapping[str, Values] = {}


def each(*values: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Every combination of values of one or more labels."""
    return tuple(itertools.product(*values))
