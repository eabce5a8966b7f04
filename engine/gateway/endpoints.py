"""The small endpoints: models, tokens to and from text, and the state of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from starlette.requests import Request
from starlette.responses import Response

from engine import __version__
from engine.gateway.errors import bad_request, model_not_found, unavailable
from engine.gateway.exchange import Exchange
from engine.gateway.prompts import Prompts, read_chat
from engine.gateway.schemas import DetokenizeBody, TokenizeBody, decode
from engine.gateway.service import Service
from engine.messages import IdsReply, IdsToText, TextReply, TextToIds
from engine.run_folder import metrics_address
from engine.transport import quiet

METRICS_TIMEOUT_S = 2.0


class Endpoints:
    """Handlers, as Starlette wants them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # --- models

    async def models(self, request: Request) -> Response:
        """``GET /v1/models``."""
        self._require_key(request)
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/{id}``."""
        self._require_key(request)
        name = request.path_params["model"]
        if name != self._service.model:
            raise model_not_found(name, self._service.model)
        return json_response(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._service.model,
            "object": "model",
            "created": self._service.created,
            "owned_by": "vitrine",
            "max_model_len": self._service.max_model_len,
        }

    # --- tokens

    async def tokenize(self, request: Request) -> Response:
        """``POST /tokenize``: ``{"count", "max_model_len", "tokens", "token_strs"}``."""
        body: TokenizeBody = await self._read(request, TokenizeBody)
        prompts = _text_or_chat(body)
        self._service.limit.check(prompts)
        reply = await self._service.engine.ask(
            TextToIds(
                request_id=_exchange(request).request_id,
                gateway=self._service.engine.gateway,
                text=prompts.texts[0] if prompts.texts else "",
                chat=prompts.chat,
                add_special_tokens=body.add_special_tokens if body.add_special_tokens is not None else not prompts.chat,
                return_token_strs=bool(body.return_token_strs),
            ),
            IdsReply,
        )
        return json_response(
            {
                "count": len(reply.token_ids),
                "max_model_len": self._service.max_model_len,
                "tokens": reply.token_ids,
                "token_strs": reply.token_strs,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """``POST /detokenize``: ``{"prompt": text}``."""
        body: DetokenizeBody = await self._read(request, DetokenizeBody)
        engine = self._service.engine
        question = IdsToText(_exchange(request).request_id, engine.gateway, tuple(body.tokens))
        reply = await engine.ask(question, TextReply)
        return json_response({"prompt": reply.text})

    async def _read(self, request: Request, kind: type[Any]) -> Any:
        exchange = _exchange(request)
        self._service.admit(exchange)
        body = await exchange.read_json_body(self._service.config.max_body_bytes)
        decoded = await asyncio.to_thread(decode, body, kind)
        self._service.check_model(decoded.model)
        return decoded

    # --- the server's state

    async def health(self, request: Request) -> Response:
        """``GET /health``: 200 while the engine makes progress, else 503; the reasons in either case."""
        report = self._service.health.report(self._service.draining)
        return json_response({"status": report.status, "reasons": report.reasons}, report.http_status)

    async def ready(self, request: Request) -> Response:
        """``GET /ready``: 200 while new requests are taken."""
        ready = self._service.engine.any_ready and not self._service.draining
        return json_response({"ready": ready}, 200 if ready else 503)

    async def version(self, request: Request) -> Response:
        """``GET /version``."""
        return json_response({"version": __version__, "revision": self._service.run.revision})

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``: what the telemetry process answers; 503 while it is away."""
        self._require_key(request)
        accept = request.headers.get("accept", "")
        try:
            content_type, page = await asyncio.wait_for(self._ask_telemetry(accept), METRICS_TIMEOUT_S)
        except TimeoutError:
            raise unavailable("the telemetry process does not answer", "metrics_unavailable") from None
        return Response(page, media_type=None, headers={"content-type": content_type.decode()})

    async def _ask_telemetry(self, accept: str) -> list[bytes]:
        socket = zmq.asyncio.Context.shadow(self._service.zmq).socket(zmq.REQ)
        try:
            quiet(socket)
            socket.connect(metrics_address(self._service.run.socket_dir))
            await socket.send(accept.encode())
            return await socket.recv_multipart()
        finally:
            socket.close()

    def _require_key(self, request: Request) -> None:
        _exchange(request).require_key(self._service.config.api_key)


def json_response(content: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _exchange(request: Request) -> Exchange:
    exchange: Exchange = request.scope["exchange"]
    return exchange


def _text_or_chat(body: TokenizeBody) -> Prompts:
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt: give either prompt or messages", "prompt")
    return Prompts(texts=(body.prompt,)) if body.prompt is not None else read_chat(body.messages or ())
