"""One streaming request against an OpenAI-compatible server, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from engine.bench.results import Arrival, RequestResult
from engine.bench.sse import EventStream

_LONGEST_MESSAGE = 300
_NAMES_SHOWN = 5


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask, and how. ``extra_body`` is merged into every request and wins over what is there."""

    url: str
    model: str = ""
    chat: bool = False
    ignore_eos: bool = True
    extra_body: dict[str, Any] = {}
    timeout_s: float = 600.0

    @property
    def base(self) -> str:
        """The URL up to and including ``/v1``, however it was written."""
        return self.url.rstrip("/").removesuffix("/v1") + "/v1"

    @property
    def endpoint(self) -> str:
        """Full URL of the endpoint under load."""
        return self.base + ("/chat/completions" if self.chat else "/completions")

    def body(self, prompt: str, output_tokens: int) -> dict[str, Any]:
        """The request: greedy, streaming, with a usage block at the end."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body | self.extra_body


class RequestError(Exception):
    """A request failed. ``kind`` is a short stable name: errors are counted by it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    def has_output(self) -> bool:
        """Whether this event brought something of the answer (a chat's first event brings only a role)."""
        delta = self.delta
        return bool(self.text or self.token_ids or (delta and (delta.content or delta.reasoning_content)))


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


_chunk_decoder = msgspec.json.Decoder(_Chunk)


class Client:
    """Sends requests to one target. `on_events` hears how many events with text came, as they come."""

    def __init__(self, target: Target, http: httpx.AsyncClient, on_events: Callable[[int], None] | None = None) -> None:
        self.target = target
        self._http = http
        self._on_events = on_events or (lambda count: None)

    async def models(self) -> list[str]:
        """The names in ``GET /v1/models``. Raises RequestError."""
        try:
            async with self._http.stream("GET", self.target.base + "/models") as response:
                await _check_status(response)
                listed = msgspec.json.decode(await response.aread(), type=_ModelList)
        except (RequestError, httpx.HTTPError, msgspec.MsgspecError) as e:
            raise _as_request_error(e) from e
        return [model.id for model in listed.data]

    async def choose_model(self) -> str:
        """The target's model once the server has said that it has it, else the first that it has. Raises RequestError.

        A server without ``/v1/models`` is believed to have what was asked for.
        """
        asked = self.target.model
        try:
            names = await self.models()
        except RequestError as e:
            if asked and e.kind == "http_404":
                return asked
            raise
        if not names:
            raise RequestError("no_model", "the server lists no model")
        if asked and asked not in names:
            known = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
            raise RequestError("no_such_model", f"there is no model {asked!r}; the server has {known}")
        return asked or names[0]

    async def complete(self, prompt: str, output_tokens: int) -> RequestResult:
        """Send one request and read its stream to the end. Failures are in the result, never raised."""
        body = msgspec.json.encode(self.target.body(prompt, output_tokens))
        result = RequestResult(sent_s=time.perf_counter())
        try:
            async with self._http.stream("POST", self.target.endpoint, content=body) as response:
                await _check_head(response)
                await self._read(response, result)
        except (RequestError, httpx.HTTPError, msgspec.MsgspecError) as e:
            error = _as_request_error(e)
            result.error, result.message = error.kind, str(error)
        result.ended_s = time.perf_counter()
        return result

    async def _read(self, response: httpx.Response, result: RequestResult) -> None:
        stream = EventStream()
        done = False
        async for data in response.aiter_bytes():
            now = time.perf_counter()
            events = token_ids = 0
            for event in stream.feed(data):
                if event == b"[DONE]":
                    done = True
                    continue
                with_output, ids = _take(_chunk_decoder.decode(event), result)
                events += with_output
                token_ids += ids
            if events:
                result.arrivals.append(Arrival(now, events, token_ids))
                self._on_events(events)
        if not done and not result.finish_reason:
            raise RequestError("disconnected", "the stream ended without a finish reason and without [DONE]")
        if not result.arrivals:
            raise RequestError("empty", "the stream brought neither text nor a finish reason")


def _take(chunk: _Chunk, result: RequestResult) -> tuple[int, int]:
    """Note what an event says; returns (1 if it brought output, token ids named)."""
    if chunk.error is not None:
        raise RequestError("stream_error", _words(msgspec.json.encode(chunk.error).decode()))
    if chunk.usage is not None:
        details = chunk.usage.prompt_tokens_details
        result.usage_tokens = chunk.usage.completion_tokens
        result.prompt_tokens = chunk.usage.prompt_tokens
        result.cached_tokens = (details and details.cached_tokens) or 0
    with_output = token_ids = 0
    for choice in chunk.choices:
        result.finish_reason = choice.finish_reason or result.finish_reason
        # An answer may have no text at all (special tokens only): then its end is all that can be timed.
        if choice.has_output() or (choice.finish_reason and not result.arrivals):
            with_output = 1
            token_ids += len(choice.token_ids or ())
    return with_output, token_ids


async def _check_head(response: httpx.Response) -> None:
    await _check_status(response)
    kind = response.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise RequestError("not_a_stream", f"asked for a stream, got content-type {kind!r}")


async def _check_status(response: httpx.Response) -> None:
    if response.status_code != 200:
        text = (await response.aread()).decode(errors="replace")
        raise RequestError(f"http_{response.status_code}", _words(text) or response.reason_phrase)


def _words(text: str) -> str:
    """What an error's body says, on one line and not too long; of JSON only its message, of a page nothing."""
    try:
        body: Any = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        body = text
    for key in ("error", "message", "detail"):  # {"error": {"message"}}, {"error": text}, {"message"}, {"detail"}
        body = body.get(key, body) if isinstance(body, dict) else body
    line = " ".join((body if isinstance(body, str) else text).split())
    if line.startswith("<"):  # a web page
        return ""
    return line if len(line) <= _LONGEST_MESSAGE else line[:_LONGEST_MESSAGE].rsplit(" ", 1)[0] + " …"


def _as_request_error(error: Exception) -> RequestError:
    """The kind of a failure. httpx's own messages are often empty: then the exception's name must do."""
    if isinstance(error, RequestError):
        return error
    text = str(error) or type(error).__name__
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return RequestError("connection", text)
        case httpx.TimeoutException():
            return RequestError("timeout", text)
        case msgspec.MsgspecError():
            return RequestError("bad_event", f"not what an OpenAI-compatible server sends: {text}")
        case _:
            return RequestError("disconnected", text)
