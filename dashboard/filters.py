"""A list's filters as they stand in a URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import msgspec.inspect
from starlette.exceptions import HTTPException

from telemetry.request_list import RequestFilters


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of ``/requests`` and ``/api/requests``. Empty ones do not narrow; times are epoch seconds."""

    state: Literal["", "tokenizing", "waiting", "running", "finished"] = ""
    replica: str = ""
    finish_reason: Literal["", "stop", "length", "abort", "error"] = ""
    error_type: str = ""
    model: str = ""
    endpoint: str = ""
    min_ttft_ms: float | None = None
    trace_id: str = ""
    id: str = ""  # beginning of the request's id, or the whole id that the client gave
    since: float | None = None
    until: float | None = None
    limit: int = 50
    cursor: str = ""
    window: str = ""

    @property
    def narrowing(self) -> dict[str, str | float]:
        """The filters that are set, as URL parameters."""
        return {k: v for k, v in msgspec.to_builtins(self).items() if k not in ("limit", "cursor", "window")}

    @property
    def filters(self) -> RequestFilters:
        """What the store is asked."""
        return RequestFilters(
            state=self.state,
            replica=self.replica,
            finish_reason=self.finish_reason,
            error_type=self.error_type,
            model=self.model,
            endpoint=self.endpoint,
            trace_id=self.trace_id.lower(),
            id_prefix=self.id,
            min_ttft_s=None if self.min_ttft_ms is None else self.min_ttft_ms / 1000,
            since=self.since,
            until=self.until,
        )


def read_query(params: Mapping[str, str]) -> ListQuery:
    """The parameters of a URL. Raises HTTPException 400 for an unknown one or a wrong value."""
    given = {name: value.strip() for name, value in params.items() if value.strip()}
    try:
        return msgspec.convert(given, ListQuery, strict=False)
    except msgspec.ValidationError as e:
        raise HTTPException(400, f"This filter cannot be used: {_words(e, given)}") from e


def _words(error: msgspec.ValidationError, given: Mapping[str, str]) -> str:
    """msgspec's complaint with the name of the parameter and, where it is one of few, what it may be."""
    name = str(error).rpartition("$.")[2].rstrip("`")
    if name not in given:
        return str(error)
    kind = msgspec.inspect.type_info(ListQuery)
    assert isinstance(kind, msgspec.inspect.StructType)
    wanted = next(field.type for field in kind.fields if field.name == name)
    if isinstance(wanted, msgspec.inspect.LiteralType):
        return f"{name} is one of {', '.join(str(value) for value in wanted.values if value)}, not {given[name]!r}"
    return f"{name} must be a number, not {given[name]!r}"
