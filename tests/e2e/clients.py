"""Clients of a served system: what they ask, and what they see."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.served import Served

MODEL = "smollm2-135m-instruct"
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
NEAR_TIE = 1e-3
BLOCK = 16
"""Tokens per KV block, by default."""


def body_of(ask: dict[str, Any]) -> dict[str, Any]:
    """A whole body: greedy unless `ask` says otherwise."""
    return {"model": MODEL, "temperature": 0, **ask}


def path_of(ask: dict[str, Any]) -> str:
    return CHATS if "messages" in ask else COMPLETIONS


def user(text: Any) -> list[dict[str, Any]]:
    """A chat of one turn."""
    return [{"role": "user", "content": text}]


def send(served: Served, ask: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    """The answer, whatever its status."""
    return httpx.post(served.url + path_of(ask), json=body_of(ask), headers=headers, timeout=120)


def send_raw(served: Served, content: bytes, path: str = COMPLETIONS) -> httpx.Response:
    """Bytes as they are, called JSON."""
    return httpx.post(served.url + path, content=content, headers={"content-type": "application/json"}, timeout=120)


def answer(served: Served, **ask: Any) -> dict[str, Any]:
    """The body of an answer of status 200."""
    response = send(served, ask)
    assert response.status_code == 200, response.text
    return response.json()


def choice(served: Served, **ask: Any) -> dict[str, Any]:
    """The first choice of an answer, with its token ids."""
    return answer(served, **ask | {"return_token_ids": True})["choices"][0]


def at_once(function: Callable[..., Any], *arguments: Any, workers: int = 64) -> list[Any]:
    """`function` of each argument, all at the same time; results in order."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, *arguments))


class Stream:
    """A streamed request that is read by a thread of its own; it begins when made."""

    def __init__(self, served: Served, headers: dict[str, str] | None = None, **ask: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.headers: dict[str, str] = {}
        self.status = 0
        self.body = b""  # of an answer that is no stream
        self.done = False
        self.broken = ""
        self.ended_at = 0.0
        self._changed = threading.Condition()
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
        self._connection.connect()
        self._socket = self._connection.sock
        content = json.dumps(body_of({"stream": True, **ask}))
        self.sent_at = time.monotonic()
        self._connection.request("POST", path_of(ask), content, {"Content-Type": "application/json", **(headers or {})})
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            response = self._connection.getresponse()
            self.headers = {k.lower(): v for k, v in response.getheaders()}
            self.status = response.status
            for line in response:
                if line.startswith(b"data:"):
                    self._take(line[5:].strip())
                elif self.status != 200:
                    self.body += line
        except (OSError, http.client.HTTPException, AttributeError) as e:  # AttributeError: closed while reading
            self.broken = repr(e)
        finally:
            with self._changed:
                self.ended_at = time.monotonic()
                self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        with self._changed:
            if data == b"[DONE]":
                self.done = True
            else:
                assert not self.done, "an event after [DONE]"
                self.events.append(json.loads(data.decode("utf-8")))
                self.times.append(time.monotonic())
            self._changed.notify_all()

    def wait_events(self, count: int, timeout_s: float = 60) -> Stream:
        """Until `count` events have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.events) >= count or self.ended_at > 0, timeout_s)
        assert came and len(self.events) >= count, f"{len(self.events)} of {count} events; {self.broken}"
        return self

    def leave(self) -> None:
        """Close the connection, as a client does that walks away."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def finish(self, timeout_s: float = 120) -> Stream:
        """Until the stream has ended, which it must have done well."""
        self.join(timeout_s)
        assert self.status == 200 and self.done and not self.failed, (self.status, self.broken, self.events[-1:])
        return self

    def join(self, timeout_s: float = 120) -> Stream:
        """Until the connection has ended in any way."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the stream goes on"
        return self

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def failed(self) -> bool:
        return any("error" in event for event in self.events)

    def choices(self, index: int = 0) -> Iterator[dict[str, Any]]:
        """The parts of one choice."""
        for event in self.events:
            yield from (c for c in event.get("choices", []) if c["index"] == index)

    def pieces(self, index: int = 0) -> list[str]:
        """What each event adds to the text of a choice."""
        return [c["text"] if "text" in c else c["delta"].get("content") or "" for c in self.choices(index)]

    def text(self, index: int = 0) -> str:
        return "".join(self.pieces(index))

    def token_ids(self, index: int = 0) -> list[int]:
        return [i for c in self.choices(index) for i in c.get("token_ids") or []]

    def finish_reasons(self, index: int = 0) -> list[str]:
        """Those that are not null: of a good stream exactly one."""
        return [c["finish_reason"] for c in self.choices(index) if c["finish_reason"]]

    def largest_gap_s(self) -> float:
        """Longest time between two events."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


def streamed(served: Served, headers: dict[str, str] | None = None, **ask: Any) -> Stream:
    """A stream that was read to its good end."""
    return Stream(served, headers, **ask).finish()


# --- the model's own files ---------------------------------------------------------------------------


@cache
def _tokenizer(path: str) -> Any:
    return AutoTokenizer.from_pretrained(path)


def tokenizer_of(served: Served) -> Any:
    """transformers' tokenizer of the served model."""
    return _tokenizer(served.folder.info().model.path)


def decoded(served: Served, ids: list[int], skip_special_tokens: bool = True) -> str:
    """What transformers makes of ids."""
    tokenizer = tokenizer_of(served)
    text: str = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    return text


@cache
def reference_model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def assert_same_greedy(served: Served, prompt: list[int], expected: list[int], got: list[int]) -> None:
    """Equal ids, or the first difference lies where the two best logits are equal to rounding."""
    if got == expected:
        return
    pairs = enumerate(zip(got, expected, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), None)
    assert at is not None, f"{len(got)} tokens instead of {len(expected)}"
    with torch.inference_mode():
        logits = reference_model(served.folder.info().model.path)(torch.tensor([prompt + expected[:at]])).logits[0, -1]
    best = torch.topk(logits, 2).values
    assert best[0] - best[1] < NEAR_TIE, f"first difference at {at}: {got[at]} instead of {expected[at]}"
