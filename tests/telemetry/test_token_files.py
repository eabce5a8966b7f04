"""Lines of a file that is read in blocks, wherever the blocks begin."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.token_files import begun_ts, line_at, lines_backwards, name_at, opened


class GivenBlocks:
    def __init__(self, parts):
        self.parts = parts
        self.starts = [0, *itertools.accumulate(map(len, parts))][: len(parts)]

    def read(self, index):
        return self.parts[index]


@st.composite
def cut_files(draw):
    """Lines, what is left of a torn one, and the file in blocks."""
    texts = draw(st.lists(st.text("ab", max_size=9), max_size=8))
    torn = draw(st.text("c", max_size=3))
    data = "".join(text + "\n" for text in texts).encode() + torn.encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=6)))
    parts = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])] if data else []
    return [text.encode() for text in texts], torn, GivenBlocks([part for part in parts if part])


def offsets_of(texts):
    return [0, *itertools.accumulate(len(text) + 1 for text in texts)]


@given(cut_files())
def test_lines_come_last_first_with_their_offsets(cut):
    texts, _, blocks = cut
    found = [line for lines in lines_backwards(blocks) for line in lines]
    assert found == list(zip(offsets_of(texts), texts, strict=False))[::-1]


@given(cut_files())
def test_a_search_goes_on_before_any_line(cut):
    texts, _, blocks = cut
    for count, end in enumerate(offsets_of(texts)):
        found = [text for lines in lines_backwards(blocks, end) for _, text in lines]
        assert found == texts[:count][::-1]


@given(cut_files())
def test_a_line_is_found_by_its_offset(cut):
    texts, torn, blocks = cut
    *starts, end = offsets_of(texts)
    assert [line_at(blocks, start) for start in starts] == [text + b"\n" for text in texts]
    assert line_at(blocks, end) is None, torn
    assert line_at(blocks, end + 100) is None


def test_a_name_says_when_a_file_began():
    now = time.time()
    assert begun_ts(name_at(now)) == int(now)
    assert begun_ts("tokens.jsonl") is None


def test_a_file_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), opened(tmp_path, name_at(0)):
        pass
