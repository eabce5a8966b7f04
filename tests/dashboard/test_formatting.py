from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.formatting import NOTHING, clock, count, duration, harmless, percent, price, si, size, visible


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, NOTHING),
        (0, "0 ms"),
        (0.00043, "430 µs"),
        (0.0009996, "1 ms"),
        (0.1823, "182 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (61, "1 min 1 s"),
        (7200, "2 h"),
    ],
)
def test_durations_have_a_fitting_unit(seconds: float | None, shown: str) -> None:
    assert duration(seconds).replace("\u00a0", " ") == shown


@given(st.floats(0, 1e6))
def test_durations_never_break_across_lines(seconds: float) -> None:
    assert " " not in duration(seconds)


def test_counts_shares_and_sizes() -> None:
    assert (count(12345), count(0.25), count(3.0), count(None)) == ("12,345", "0.2", "3", NOTHING)
    shown = [text.replace("\u00a0", " ") for text in (percent(0.873), percent(0.004), percent(0), size(1610612736))]
    assert shown == ["87 %", "0.4 %", "0 %", "1.5 GiB"]


def test_rates_have_prefixes_and_prices_three_digits() -> None:
    shown = [si(n, "B/s").replace("\u00a0", " ") for n in (0, 950, 999.6, 2.131e10, 4e18)]
    assert shown == ["0 B/s", "950 B/s", "1 kB/s", "21.3 GB/s", "4e+03 PB/s"]
    assert (si(None, "B/s"), price(None), price(0.01234), price(1234.5)) == (NOTHING, NOTHING, "0.0123", "1,234")


def test_clock_gives_the_date_of_another_day() -> None:
    now = time.time()
    assert len(clock(now)) == len("12:00:00")
    assert clock(now - 400 * 86400).startswith("20")


@given(st.text())
def test_shown_text_holds_no_character_that_controls(text: str) -> None:
    for shown in (visible(text), harmless(text).replace("\n", "").replace("\t", "")):
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Zl", "Zp") or "\u202a" <= c <= "\u202e"]


def test_pieces_show_their_white_space() -> None:
    assert visible(" a\n\t\u202e") == "·a⏎⇥\\u{202e}"
