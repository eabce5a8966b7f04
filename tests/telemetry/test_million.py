"""A million requests in the store: no page waits for it."""

from __future__ import annotations

import time

import pytest

from telemetry.queries import open_reader
from tests.load.million import fill, times_ms

REQUESTS = 1_000_000
LIMIT_MS = 100


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_pages_take_less_than_a_tenth_of_a_second_with_a_million_requests(tmp_path, request, kind):
    url = request.getfixturevalue("postgresql").new_database() if kind == "postgresql" else ""
    now_ts = time.time()
    fill(tmp_path, url, REQUESTS, now_ts)
    reader = open_reader(tmp_path, url)
    found = times_ms(reader, REQUESTS, now_ts)
    reader.close()
    assert {name: ms for name, ms in found.items() if ms >= LIMIT_MS} == {}
