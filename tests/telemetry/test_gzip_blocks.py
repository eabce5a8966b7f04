"""Gzip files of blocks: what the gzip module reads, and each block by itself."""

import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import gzip_blocks


@pytest.fixture
def open_file(tmp_path):
    opened = []

    def make(data):
        (tmp_path / "file.gz").write_bytes(data)
        opened.append(os.open(tmp_path / "file.gz", os.O_RDONLY))
        return opened[-1]

    yield make
    for fd in opened:
        os.close(fd)


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_any_gzip_reader_reads_them(blocks):
    assert gzip.decompress(b"".join(map(gzip_blocks.pack, blocks))) == b"".join(blocks)


@given(st.binary(max_size=3000))
def test_a_block_comes_back(data):
    assert gzip_blocks.unpack(gzip_blocks.pack(data)) == data


def test_members_are_found_without_decompressing(open_file):
    blocks = [b"a" * 1000, b"", b"bc", b"d" * 7]
    packed = list(map(gzip_blocks.pack, blocks))
    found = gzip_blocks.members(open_file(b"".join(packed)))
    assert [member.start for member in found] == [0, 1000, 1000, 1002]
    assert [member.length for member in found] == list(map(len, packed))
    assert [member.offset for member in found] == [sum(map(len, packed[:i])) for i in range(4)]


@pytest.mark.parametrize("data", [gzip.compress(b"of another kind"), b"{}\n", gzip_blocks.pack(b"x") + b"\x1f"])
def test_other_files_are_refused(open_file, data):
    with pytest.raises(ValueError, match="not a gzip file of blocks"):
        gzip_blocks.members(open_file(data))


@pytest.mark.parametrize("at", [30, -6, -1])
def test_damage_is_found(at):
    damaged = bytearray(gzip_blocks.pack(b"some data " * 20))
    damaged[at] ^= 0x55
    with pytest.raises(ValueError, match=r"checksum|decompressed"):
        gzip_blocks.unpack(bytes(damaged))
