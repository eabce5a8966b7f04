from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.bench.sse import EventStream


def events_of(*chunks: bytes) -> list[bytes]:
    stream = EventStream()
    return [event for chunk in chunks for event in stream.feed(chunk)]


def test_one_event_per_blank_line():
    assert events_of(b"data: a\n\ndata: b\n\n") == [b"a", b"b"]


def test_only_one_leading_space_belongs_to_the_format():
    assert events_of(b"data:a\n\ndata:  b\n\n") == [b"a", b" b"]


def test_data_lines_of_one_event_are_joined():
    assert events_of(b"data: a\ndata: b\n\n") == [b"a\nb"]


def test_comments_and_other_fields_are_passed_over():
    assert events_of(b": ping\n\nevent: x\nid: 1\ndata: a\nretry: 5\n\n\n\n") == [b"a"]


def test_an_event_without_its_blank_line_is_none():
    assert events_of(b"data: a\n\ndata: cut of") == [b"a"]


@given(st.lists(st.binary(min_size=1).filter(lambda b: not set(b) & {10, 13})), st.data(), st.booleans())
def test_it_does_not_matter_where_the_network_cuts(bodies, data, crlf):
    end = b"\r\n" if crlf else b"\n"
    wire = b"".join(b"data: " + body + end + end for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    chunks = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert events_of(*chunks) == bodies
