"""A server that speaks just enough of the OpenAI API to be measured, and misbehaves on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

Answer = Callable[[dict[str, Any]], AsyncIterator[bytes] | Response]


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(piece: str, finish_reason: str | None = None, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "text": piece, "finish_reason": finish_reason, **more}], usage=None)


def usage(prompt: int, completion: int, cached: int = 0) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event(choices=[], usage=counts | {"prompt_tokens_details": {"cached_tokens": cached}})


DONE = b"data: [DONE]\n\n"


async def well_behaved(body: dict[str, Any]) -> AsyncIterator[bytes]:
    """One event per token, and a usage block that counts one token per word, and three more."""
    prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    for i in range(body["max_tokens"]):
        yield text(f" t{i}")
        await asyncio.sleep(0.001)
    yield text("", "length") + usage(len(prompt.split()) + 3, body["max_tokens"]) + DONE


class FakeServer:
    """`answer` makes the reply to every completion; `bodies` are the requests seen. Without `models` it lists none."""

    def __init__(self, answer: Answer = well_behaved, models: Sequence[str] | None = ("fake-1", "fake-2")) -> None:
        self.answer = answer
        self.models = models
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        self.url = ""

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        answer = self.answer(body)
        if isinstance(answer, Response):
            return answer
        return StreamingResponse(self._counted(answer), media_type="text/event-stream")

    async def _counted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            self.at_once -= 1

    async def _models(self, request: Request) -> Response:
        if self.models is None:
            return PlainTextResponse("Not Found", 404)
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ]
        )
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        # asyncio switches Nagle's delay off only for sockets that say that they are TCP.
        with socket.socket(proto=socket.IPPROTO_TCP) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with contextlib.suppress(asyncio.CancelledError):
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                try:
                    yield self
                finally:
                    server.should_exit = True
                    await serving
