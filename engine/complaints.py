"""What is wrong with a value, in plain words.

msgspec says that a value is wrong and where; what would be right is told from the type that stands there, so that
a client who sends ``"5"`` for a count hears of the bounds as well as of the kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET, inspect

_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.{3})\]")
_LONGEST_SHOWN = 40
_INT64 = (-(2**63), 2**63 - 1)
"""Bounds that only say how the number is stored: not worth telling anyone who keeps within them."""

_PLURALS = {
    inspect.IntType: "whole numbers",
    inspect.FloatType: "numbers",
    inspect.StrType: "texts",
    inspect.ListType: "lists",
    inspect.DictType: "objects",
}


def locate(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split msgspec's complaint into its reason and the path of the value, like ``messages[0].role``."""
    found = _AT.fullmatch(str(error))
    return (found[1], found[2]) if found else (str(error), "")


def complain(kind: Any, value: Any, path: str) -> str:
    """What is needed at `path` of a `kind`, and what stands there in `value` (UNSET where that is not known)."""
    for name, index in _STEP.findall(path):
        value = _member(value, name or index)
    got = "" if value is UNSET else f", got {shown(value)}"
    return f"{describe(kind, path, value)} is needed{got}"


def describe(kind: Any, path: str = "", value: Any = UNSET) -> str:
    """The value that is right at `path` of a `kind`: "a whole number between 1 and 16"."""
    at = _type_info(kind)
    for name, _ in _STEP.findall(path):
        at = _member_type(at, name)
    return " or ".join(_describe(option, value) for option in _options(at))


def shown(value: Any) -> str:
    """A value that came from outside, short and printable; of long ones only what they are."""
    if isinstance(value, list) and value:
        return f"a list of {len(value)}"
    if isinstance(value, dict) and value:
        return "an object"
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters"
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


@cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _member(value: Any, step: str) -> Any:
    try:
        return value[int(step)] if isinstance(value, list) else value[step]
    except (LookupError, TypeError, ValueError):
        return UNSET


def _member_type(kind: inspect.Type, name: str) -> inspect.Type:
    """The type of a field, or without a name that of an item."""
    for option in _options(kind):
        if isinstance(option, inspect.StructType) and name:
            return next((field.type for field in option.fields if field.encode_name == name), inspect.AnyType())
        if isinstance(option, inspect.ListType) and not name:
            return option.item_type
        if isinstance(option, inspect.DictType) and not name:
            return option.value_type
    return inspect.AnyType()


def _options(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types that a value may have; null is never named, since it only means "not given"."""
    if isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from _options(option)
    elif isinstance(kind, inspect.Metadata):
        yield from _options(kind.type)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _describe(kind: inspect.Type, value: Any) -> str:
    match kind:
        case inspect.IntType():
            return "a whole number" + _bounds(kind, value)
        case inspect.FloatType():
            return "a number" + _bounds(kind, value)
        case inspect.StrType():
            return _text(kind)
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return "one of " + ", ".join(map(str, kind.values))
        case inspect.ListType():
            return _list(kind)
        case inspect.DictType() | inspect.StructType():
            return "an object"
    return "another value"


def _bounds(kind: inspect.IntType | inspect.FloatType, value: Any) -> str:
    """`` between 1 and 16``, `` of at least 1``, `` above 0 and at most 1``."""
    if (kind.ge, kind.le) == _INT64:
        return " of 64 bits"
    most = None if kind.le == _INT64[1] and not _is_above(value, _INT64[1]) else kind.le
    if kind.ge is not None and most is not None:
        return f" between {_number(kind.ge)} and {_number(most)}"
    if kind.ge is not None:
        return f" of at least {_number(kind.ge)}"
    limits = (("above", kind.gt), ("at most", most))
    return " and".join(f" {word} {_number(limit)}" for word, limit in limits if limit is not None)


def _is_above(value: Any, bound: int) -> bool:
    return isinstance(value, int | float) and value > bound


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _text(kind: inspect.StrType) -> str:
    if kind.min_length and kind.max_length:
        return f"a text of {kind.min_length} to {kind.max_length} characters"
    return "a text" if kind.max_length is None else f"a text of at most {kind.max_length} characters"


def _list(kind: inspect.ListType) -> str:
    items = _plural(kind.item_type)
    if kind.min_length:
        return f"a list of one or more {items}"
    return f"a list of at most {kind.max_length} {items}" if kind.max_length else f"a list of {items}"


def _plural(kind: inspect.Type) -> str:
    """What items of a type are called: by the type's title (msgspec.Meta) where it has one."""
    title = (kind.extra_json_schema or {}).get("title") if isinstance(kind, inspect.Metadata) else None
    return f"{title}s" if title else _PLURALS.get(type(next(_options(kind))), "values")
