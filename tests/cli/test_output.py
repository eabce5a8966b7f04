from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from engine.commands.output import clock, print_table, seconds, show, size
from engine.commands.plain import plain


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.00 µs"),
        (0.000412, "412 µs"),
        (0.0183, "18.3 ms"),
        (0.00183, "1.83 ms"),
        (2.413, "2.41 s"),
        (123.4, "123 s"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_seconds(value, shown):
    assert seconds(value) == shown


@given(st.floats(1e-6, 1e5))
def test_seconds_are_true_to_one_percent(value):
    number, unit = seconds(value).split()
    assert float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (999, "999 B"), (92_871_040, "92.9 MB"), (2e9, "2.0 GB")])
def test_size(count, shown):
    assert size(int(count)) == shown


@given(st.text())
def test_foreign_text_cannot_control_the_terminal(text):
    assert plain(text).isprintable()


def test_printable_text_stays_as_it_is():
    assert plain("Grüße, 世界 – [b]") == "Grüße, 世界 – [b]"


def test_the_time_of_another_day_has_its_date():
    assert len(clock(time.time())) == len("12:34:56")
    assert clock(time.time() - 48 * 3600).startswith(time.strftime("%Y-", time.localtime(time.time() - 48 * 3600)))


def test_a_table_without_column_names_has_no_header(capsys):
    print_table(["", ""], [["a", "b"]])
    assert capsys.readouterr().out == "a  b\n"


def test_what_is_shown_has_no_blanks_at_its_ends_and_keeps_those_within(capsys):
    show(Text("\n \n  a  b  \n\nc\n \n"), Console(width=20))
    assert capsys.readouterr().out == "  a  b\n\nc\n"
