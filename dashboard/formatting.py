"""Numbers, times and foreign text as a person reads them. The templates' filters."""

from __future__ import annotations

import time
import unicodedata
from datetime import datetime

NOTHING = "–"
_NBSP = "\u00a0"  # keeps a number and its unit on one line
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def duration(seconds: float | None) -> str:
    """``0.1823`` → ``182 ms``; three significant digits, minutes from 60 s on."""
    if seconds is None:
        return NOTHING
    size = abs(seconds)
    if size >= 3600:
        return f"{seconds / 3600:.3g}{_NBSP}h"
    if size >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}{_NBSP}min{_NBSP}{rest}{_NBSP}s"
    if size >= 0.9995:
        return f"{seconds:.3g}{_NBSP}s"
    if size >= 0.0009995:
        return f"{seconds * 1e3:.3g}{_NBSP}ms"
    return f"{round(seconds * 1e6)}{_NBSP}µs" if size else f"0{_NBSP}ms"


def count(number: float | None) -> str:
    """``12345`` → ``12,345``; one decimal below ten unless it is whole."""
    if number is None:
        return NOTHING
    if number == int(number) or abs(number) >= 10:
        return f"{number:,.0f}"
    return f"{number:.1f}"


def number(amount: float, thing: str) -> str:
    """``1, "request"`` → ``1 request``; ``2 requests``."""
    return f"{count(amount)} {thing}{'' if amount == 1 else 's'}"


def percent(ratio: float | None) -> str:
    """``0.873`` → ``87 %``; one decimal below ten percent."""
    if ratio is None:
        return NOTHING
    value = 100 * ratio
    return f"{value:.1f}{_NBSP}%" if 0 < value < 9.95 else f"{value:.0f}{_NBSP}%"


def size(num_bytes: float | None) -> str:
    """``1610612736`` → ``1.5 GiB``."""
    if num_bytes is None:
        return NOTHING
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{digits}{_NBSP}{_BYTE_UNITS[unit]}"


def price(amount: float | None) -> str:
    """Three digits, of whatever currency."""
    return NOTHING if amount is None else f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def si(amount: float | None, unit: str) -> str:
    """``2.13e10, "B/s"`` → ``21.3 GB/s``."""
    if amount is None:
        return NOTHING
    value, prefixes = amount, iter(("", "k", "M", "G", "T", "P"))
    prefix = next(prefixes)
    while value >= 999.5 and prefix != "P":
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.3g}{_NBSP}{prefix}{unit}"


def clock(ts: float | None) -> str:
    """Time of day, and the date where it is not today's."""
    if ts is None:
        return NOTHING
    today = time.strftime("%Y-%m-%d")
    day, _, of_day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts)).partition(" ")
    return of_day if day == today else f"{day} {of_day}"


def iso(ts: float) -> str:
    """A time for machines, with milliseconds and zone."""
    return datetime.fromtimestamp(ts).astimezone().isoformat(timespec="milliseconds")


def short(identifier: str | None, length: int = 12) -> str:
    """The beginning of a hash."""
    return (identifier or NOTHING)[:length]


_SHOWN_AS = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "·"}


def visible(text: str) -> str:
    """A token's piece with its white space shown, and what would not show or would reorder the line escaped."""
    return "".join(_SHOWN_AS.get(c) or _harmless(c) for c in text)


def harmless(text: str) -> str:
    """Text as it is, except for control and direction-changing characters, which are shown as escapes."""
    return "".join(c if c in "\n\t" else _harmless(c) for c in text)


def _harmless(char: str) -> str:
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and char != "\u200d":
        return f"\\u{{{ord(char):x}}}"
    return char
