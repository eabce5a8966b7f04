from __future__ import annotations

import pytest

from engine.gateway.trace_context import read_context, write_parent
from telemetry.span_ids import server_span_id, span_id

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()


def test_a_callers_context_is_taken_over() -> None:
    context = read_context([GOOD], [b"a=1", b" b@sys=x y "])
    assert (context.trace_id, context.parent_span_id, context.flags) == (TRACE, SPAN, 1)
    assert context.state == "a=1,b@sys=x y"


def test_a_later_version_may_have_more_fields() -> None:
    assert read_context([b"cc-" + GOOD[3:] + b"-what-ever"], []).trace_id == TRACE


@pytest.mark.parametrize(
    "parents",
    [
        [],
        [b"garbage"],
        [b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"],
        [f"00-{'0' * 32}-{SPAN}-01".encode()],
        [f"00-{TRACE}-{'0' * 16}-01".encode()],
        [b"ff-" + GOOD[3:]],
        [GOOD.upper()],
        [GOOD + b"-more"],
        [GOOD[:-1]],
        [GOOD + b"0"],
        [GOOD, GOOD],
        [b""],
        ["00-\xe4".encode("latin-1") + GOOD[4:]],
    ],
)
def test_a_malformed_context_gives_a_fresh_trace(parents: list[bytes]) -> None:
    context = read_context(parents, [b"a=1"])
    assert context.trace_id != TRACE and len(context.trace_id) == 32
    assert (context.parent_span_id, context.flags, context.state) == ("", -1, "")


@pytest.mark.parametrize(
    "state",
    [b"a", b"A=1", b"a=1,a=2", b"a=\x01", b"=1", b"a=" + b"x" * 10_000, b",".join(b"k%d=1" % i for i in range(33))],
)
def test_a_malformed_state_is_left_out_and_the_trace_goes_on(state: bytes) -> None:
    context = read_context([GOOD], [state])
    assert (context.trace_id, context.state) == (TRACE, "")


def test_a_written_parent_can_be_read() -> None:
    value = write_parent(TRACE, 5, sampled=False)
    assert value == f"00-{TRACE}-0000000000000005-00"
    assert read_context([value.encode()], []).parent_span_id == "0000000000000005"


def test_span_ids_depend_on_everything_they_stand_for() -> None:
    ids = {span_id(r, s, stage, a) for r in ("a", "b") for s in (-1, 0) for stage in ("x", "y") for a in (0, 1)}
    assert len(ids) == 16 and all(0 < i < 2**64 for i in ids)
    assert server_span_id("a") == server_span_id("a") != server_span_id("b")
