from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.statistics import Distribution, percentile

VALUES = st.lists(st.floats(0, 1e6), min_size=1)


def test_nothing_has_no_distribution():
    assert Distribution.of([]) is None


def test_one_value_is_all_its_percentiles():
    assert Distribution.of([2.0]) == Distribution(1, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)


def test_percentiles_interpolate():
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 1.0) == 4.0


@given(VALUES, st.floats(0, 1))
def test_percentile_agrees_with_numpy(values, q):
    assert percentile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-9)


@given(VALUES)
def test_a_distribution_is_in_order(values):
    d = Distribution.of(values)
    assert d.count == len(values)
    assert d.min <= d.p50 <= d.p90 <= d.p99 <= d.max
    assert d.min <= d.mean or math.isclose(d.min, d.mean)
    assert d.mean <= d.max or math.isclose(d.mean, d.max)
