"""A load of every kind of request, and what the client of each of them has seen."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import msgspec

from tests.e2e.clients import Stream, body_of, path_of, user
from tests.e2e.served import Served

LONG = {"max_tokens": 2500, "ignore_eos": True}
"""Never at its end before its client leaves or its time is up; with the longest prompt it fits into 260 KV blocks."""
OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat"}


class Outcome(msgspec.Struct, kw_only=True):
    """What a client knows of its request. Counts of tokens are None where it cannot know them."""

    client_id: str
    kind: str
    endpoint: str
    finish_reason: str
    error: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    received_tokens: int = 0
    sequences: int | None = None
    first_token: bool | None = None

    @property
    def operation(self) -> str:
        return OPERATIONS[self.endpoint]


class Client:
    """One client's ways to ask. Each returns what it saw."""

    def __init__(self, served: Served, client_id: str, kind: str) -> None:
        self._served = served
        self._headers = {"x-request-id": client_id}
        self._seen = {"client_id": client_id, "kind": kind}

    def whole(self, ask: dict[str, Any]) -> Outcome:
        """Wait for the answer or the refusal."""
        return self.raw(json.dumps(body_of(ask)).encode(), path_of(ask))

    def raw(self, content: bytes, path: str) -> Outcome:
        """Send bytes that are called JSON."""
        headers = {**self._headers, "content-type": "application/json"}
        response = httpx.post(self._served.url + path, content=content, headers=headers, timeout=120)
        body = response.json()
        if response.status_code != 200:
            return self._failed(path, body["error"], response.status_code)
        return self._answered(path, [c["finish_reason"] for c in body["choices"]], body["usage"])

    def streamed(self, ask: dict[str, Any]) -> Outcome:
        """Read a stream to its end, good or bad."""
        stream = self._stream({**ask, "stream_options": {"include_usage": True}}).join()
        path, parts = path_of(ask), stream.events if stream.status == 200 else [json.loads(stream.body)]
        failure = next((part["error"] for part in parts if "error" in part), None)
        if failure:
            return self._failed(path, failure, stream.status, len(stream.token_ids()))
        choices = {c["index"] for event in stream.events for c in event["choices"]}
        reasons = [reason for index in choices for reason in stream.finish_reasons(index)]
        return self._answered(path, reasons, stream.events[-1]["usage"])

    def left(self, ask: dict[str, Any], events: int = 0, after_s: float = 0.0) -> Outcome:
        """Leave after so many events, or after a while, long before the end."""
        stream = self._stream({**ask, **LONG})
        if events:
            stream.wait_events(events)
        time.sleep(after_s)
        stream.leave()
        received = len(stream.join().token_ids())
        return Outcome(
            **self._seen,
            endpoint=path_of(ask),
            finish_reason="abort",
            received_tokens=received,
            first_token=True if received else None,
        )

    def _stream(self, ask: dict[str, Any]) -> Stream:
        return Stream(self._served, self._headers, **ask, return_token_ids=True)

    def _failed(self, path: str, error: dict[str, Any], status: int, received: int = 0) -> Outcome:
        refused = status in (400, 404, 413, 429)
        return Outcome(
            **self._seen,
            endpoint=path,
            finish_reason="error",
            error=error["code"] or error["type"],
            output_tokens=0 if refused else None,
            sequences=0 if refused else None,
            received_tokens=received,
            first_token=bool(received) if refused or received else None,
        )

    def _answered(self, path: str, reasons: list[str], usage: dict[str, Any]) -> Outcome:
        assert reasons and set(reasons) <= {"stop", "length"}
        return Outcome(
            **self._seen,
            endpoint=path,
            finish_reason="length" if "length" in reasons else "stop",
            prompt_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            received_tokens=usage["completion_tokens"],
            sequences=len(reasons),
            first_token=True,
        )


Kind = Callable[[Client, random.Random], Outcome]


def _ids(chooser: random.Random, most: int = 60) -> list[int]:
    return [chooser.randrange(1000, 40_000) for _ in range(chooser.randrange(1, most))]


def _tokens(chooser: random.Random) -> int:
    return chooser.choice([1, 1, 2, 5, 12, 24])


def _best_of(client: Client, chooser: random.Random) -> Outcome:
    ask = {"prompt": _ids(chooser), "max_tokens": 4, "ignore_eos": True, "temperature": 1.0, "best_of": 3, "n": 2}
    outcome = client.whole(ask)
    outcome.sequences = 3
    return outcome


def _stopped(client: Client, chooser: random.Random) -> Outcome:
    ask = {
        "prompt": _ids(chooser),
        "max_tokens": 30,
        "temperature": 1.0,
        "stop": chooser.choice(["a", " ", ["e", "o"]]),
    }
    return client.streamed(ask) if chooser.random() < 0.5 else client.whole(ask)


ANSWERED: dict[str, Kind] = {
    "completion": lambda c, r: c.whole({"prompt": _ids(r), "max_tokens": _tokens(r)}),
    "completion of several prompts": lambda c, r: c.whole({"prompt": [_ids(r), _ids(r), _ids(r)], "max_tokens": 3}),
    "completion stream": lambda c, r: c.streamed({"prompt": _ids(r), "max_tokens": _tokens(r)}),
    "chat": lambda c, r: c.whole({"messages": user(f"Question {r.random()}"), "max_tokens": _tokens(r)}),
    "chat stream": lambda c, r: c.streamed({"messages": user("Hello"), "max_tokens": _tokens(r), "ignore_eos": True}),
    "choices": lambda c, r: c.whole({"prompt": _ids(r), "max_tokens": 5, "n": 3, "temperature": 1.0}),
    "streamed choices": lambda c, r: c.streamed({"messages": user("Hi"), "max_tokens": 5, "n": 2, "temperature": 1.0}),
    "best of": _best_of,
    "echo": lambda c, r: c.whole({"prompt": _ids(r), "max_tokens": 4, "echo": True}),
    "cached prompt": lambda c, r: c.whole({"prompt": list(range(1000, 1200)), "max_tokens": 2}),
    "stop string": _stopped,
}
REFUSED: dict[str, Kind] = {
    "unknown field": lambda c, r: c.whole({"prompt": "x", "no_such_field": 1}),
    "wrong value": lambda c, r: c.whole({"messages": user("x"), "temperature": -1}),
    "no JSON": lambda c, r: c.raw(b"{", "/v1/completions"),
    "another model": lambda c, r: c.whole({"prompt": "x", "model": f"model-{r.random()}"}),
    "too long a prompt": lambda c, r: c.whole({"prompt": [5] * 9000, "max_tokens": 1}),
    "no such id": lambda c, r: c.whole({"prompt": [2_000_000], "max_tokens": 1}),
}
TOO_LARGE: dict[str, Kind] = {
    "too large a body": lambda c, r: c.whole({"prompt": "x" * 300_000}),
}
ABORTED: dict[str, Kind] = {
    "left at once": lambda c, r: c.left({"prompt": _ids(r)}),
    "left in its prefill": lambda c, r: c.left({"prompt": _ids(r, 1500)}, after_s=r.uniform(0, 0.03)),
    "left in its answer": lambda c, r: c.left({"messages": user("Count")}, events=r.randrange(1, 9)),
    "left with choices": lambda c, r: c.left({"prompt": _ids(r), "n": 3, "temperature": 1.0}, events=4),
}
FAILED: dict[str, Kind] = {
    "too late": lambda c, r: c.whole({"prompt": _ids(r), **LONG, "timeout": r.uniform(0.001, 0.2)}),
    "too late a stream": lambda c, r: c.streamed({"prompt": _ids(r), **LONG, "timeout": r.uniform(0.05, 0.3)}),
}


def run_kind(served: Served, kinds: dict[str, Kind], kind: str, number: int, run: str) -> Outcome:
    """One request of a kind."""
    return kinds[kind](Client(served, f"{run}-{number}", kind), random.Random(number))


def mixture(kinds: dict[str, Kind], count: int, often: Iterable[str], seed: int) -> list[str]:
    """`count` names of kinds, each of them at least once, those named in `often` five times as likely as others."""
    chooser = random.Random(seed)
    weights = [5 if name in set(often) else 1 for name in kinds]
    names = list(kinds) + chooser.choices(list(kinds), weights, k=count - len(kinds))
    chooser.shuffle(names)
    return names
