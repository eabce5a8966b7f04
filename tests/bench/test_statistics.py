from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.statistics import Distribution, MedianInterval, percentile

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


@pytest.mark.parametrize(("n", "cut"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (10, 1), (12, 2), (20, 5)])
def test_the_interval_of_the_median_is_that_of_the_tables(n, cut):
    """Order statistics for 95 %: see any table of the sign test."""
    interval = MedianInterval.of(range(n))
    assert (interval.low, interval.high) == (cut, n - 1 - cut)
    assert interval.median == (n - 1) / 2


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    rng = random.Random(3)
    intervals = [MedianInterval.of(rng.lognormvariate(0, 1) for _ in range(10)) for _ in range(2000)]
    held = sum(i.low <= 1 <= i.high for i in intervals) / len(intervals)
    assert held == pytest.approx(intervals[0].confidence, abs=0.012)
    assert intervals[0].confidence == pytest.approx(0.9785, abs=1e-4)


def test_the_interval_does_not_depend_on_the_order_and_few_values_say_how_little_they_tell():
    assert MedianInterval.of([3, 1, 2]) == MedianInterval.of([1, 2, 3])
    assert MedianInterval.of([5]).confidence == 0
    assert MedianInterval.of([1, 2, 3]).confidence == 0.75
