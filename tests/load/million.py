"""How long the pages' queries take with a million requests in the store.

``python -m tests.load.million [--requests 1000000] [--url postgresql://…]`` fills a store and times each query that the
dashboard and its API make, first pages and deep ones, with every filter; prints the 95th percentile of each.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import insert, text

from dashboard.store import slowest
from telemetry import schema
from telemetry.database import Database
from telemetry.queries import Reader, open_reader
from telemetry.request_list import RequestFilters
from telemetry.store import Store
from tests.dashboard.factories import make_request

CHUNK = 5000
SPAN_S = 30 * 86_400
REPETITIONS = 7


def request_id(number: int) -> str:
    """As the gateway makes them: in order of time."""
    return f"req-{number:024x}"


def fill(folder: Path, url: str, requests: int, now_ts: float) -> None:
    """Requests over the last 30 days; one in 200 failed, one in 500 was slow; the last two run still."""
    Store(folder, url).close()
    rng = random.Random(0)
    engine = Database(folder, url).open_reader()
    with engine.begin() as connection:
        for first in range(0, requests, CHUNK):
            rows = [_row(n, requests, now_ts, rng) for n in range(first, min(first + CHUNK, requests))]
            connection.execute(insert(schema.requests), rows)
            connection.execute(insert(schema.sequences), [_sequence(row["request_id"]) for row in rows])
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # does it by itself, some time later; SQLite never does
            connection.execute(text("ANALYZE"))
    engine.dispose()


def _row(number: int, requests: int, now_ts: float, rng: random.Random) -> dict[str, Any]:
    row = make_request(request_id(number), now_ts - SPAN_S * (1 - (number + 1) / requests))
    failed, slow = rng.random() < 0.005, rng.random() < 0.002
    row |= {
        "trace_id": f"{number * 0x9E3779B97F4A7C15 % (1 << 128):032x}",
        "replica": rng.choice(("r0", "r1", "r2")),
        "endpoint": rng.choice(("/v1/completions", "/v1/chat/completions")),
        "finish_reason": "error" if failed else rng.choice(("stop", "length", "stop", "abort")),
        "error_type": "internal_error" if failed else None,
        "client_request_id": f"client-{number}" if number % 10 == 0 else None,
        "ttft_s": rng.uniform(2, 9) if slow else rng.uniform(0.02, 0.4),
        "e2e_s": rng.uniform(10, 60) if slow else rng.uniform(0.2, 4),
        "output_tokens": rng.randrange(1, 2000),
    }
    if number >= requests - 2:
        row |= {"state": "running", "finish_reason": None}
    return row


def _sequence(owner: str) -> dict[str, Any]:
    own = dict.fromkeys((column.name for column in schema.sequences.c), None)
    return own | {"request_id": owner, "idx": 0, "prompt_index": 0, "finish_reason": "stop", "waits": [], "chunks": []}


Query = Callable[[Reader], object]


def queries(requests: int, now_ts: float) -> Iterator[tuple[str, Query]]:
    """Every kind of question that a page asks, by what it is called."""
    middle, hour = request_id(requests // 2), now_ts - 3600
    filters: dict[str, dict[str, Any]] = {
        "everything": {},
        "running": {"state": "running"},
        "finished": {"state": "finished"},
        "a replica": {"replica": "r1"},
        "a replica that never was": {"replica": "r9"},
        "errors": {"finish_reason": "error"},
        "an error type": {"error_type": "internal_error"},
        "an error type that never was": {"error_type": "nothing_like_it"},
        "an endpoint": {"endpoint": "/v1/completions"},
        "a model that never was": {"model": "nobody"},
        "a trace": {"trace_id": f"{(requests // 2) * 0x9E3779B97F4A7C15 % (1 << 128):032x}"},
        "an id": {"id_prefix": middle},
        "the beginning of an id": {"id_prefix": middle[:20]},
        "a client's id": {"id_prefix": f"client-{requests // 2 // 10 * 10}"},
        "slow first tokens": {"min_ttft_s": 2.0},
        "first tokens slower than any": {"min_ttft_s": 100.0},
        "slow answers": {"min_e2e_s": 10.0},
        "answers slower than any": {"min_e2e_s": 1000.0},
        "long answers": {"min_output_tokens": 1990},
        "the last hour": {"since": hour},
        "an hour two weeks ago": {"since": now_ts - SPAN_S / 2, "until": now_ts - SPAN_S / 2 + 3600},
        "errors of a replica, slow": {"finish_reason": "error", "replica": "r2", "min_ttft_s": 1.0},
        "aborted long answers of an endpoint": {
            "finish_reason": "abort", "min_output_tokens": 1900, "endpoint": "/v1/completions",
        },
    }  # fmt: skip
    for name, values in filters.items():
        yield name, _page(RequestFilters(**values))
    yield "everything, a deep page", _page(RequestFilters(), deep=True)
    yield "errors, a deep page", _page(RequestFilters(finish_reason="error"), deep=True)
    yield "one request", lambda reader: reader.get_request(middle)
    yield "one request by the beginning of its id", lambda reader: reader.find_request(middle[:-1])
    yield "its sequences", lambda reader: reader.get_sequences(middle)
    yield "the slowest of the last hour", lambda reader: slowest(reader, hour)
    yield "the slowest of all", lambda reader: slowest(reader, 0.0)
    yield "replica events", lambda reader: reader.replica_events()
    yield "incarnations", lambda reader: reader.incarnations()
    yield "samples of an hour", lambda reader: reader.samples(hour, now_ts)
    yield "steps of a minute", lambda reader: reader.steps(now_ts - 60, now_ts)


def _page(filters: RequestFilters, deep: bool = False) -> Query:
    cursors = [""]  # the last one is asked for

    def ask(reader: Reader) -> object:
        while deep and len(cursors) < 5:
            cursors.append(reader.list_requests(filters, limit=1000, cursor=cursors[-1]).cursor)
        return reader.list_requests(filters, limit=100, cursor=cursors[-1])

    return ask


def times_ms(reader: Reader, requests: int, now_ts: float) -> dict[str, float]:
    """The slowest of a few repetitions of each query, after one that does not count."""
    found = {}
    for name, ask in queries(requests, now_ts):
        ask(reader)
        taken = []
        for _ in range(REPETITIONS):
            started = time.perf_counter()
            ask(reader)
            taken.append(1e3 * (time.perf_counter() - started))
        found[name] = max(taken)
    return found


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--url", default="", help="an empty PostgreSQL database; else a SQLite file")
    args = parser.parse_args()
    now_ts = time.time()
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), args.url, args.requests, now_ts)
        reader = open_reader(Path(folder), args.url)
        table = Table("query", f"ms, slowest of {REPETITIONS}")
        for name, ms in sorted(times_ms(reader, args.requests, now_ts).items(), key=lambda pair: -pair[1]):
            table.add_row(name, f"{ms:.1f}")
        Console().print(table)
        reader.close()


if __name__ == "__main__":
    main()
