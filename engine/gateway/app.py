"""The ASGI application: routes, and what all responses have in common."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.gateway.endpoints import Endpoints
from engine.gateway.errors import ApiError, ClientGoneError, internal_error
from engine.gateway.exchange import Exchange
from engine.gateway.generation import GenerationEndpoint
from engine.gateway.generation_request import read_chat_completion, read_completion
from engine.gateway.responses import ChatShape, CompletionShape
from engine.gateway.service import Service

COMPLETIONS = "/v1/completions"
CHAT_COMPLETIONS = "/v1/chat/completions"
_SHOWN_PATH_CHARS = 200


class GatewayApp:
    """Makes an `Exchange` of each HTTP request and hands it to the routes."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self._sampled = config.telemetry == "on" and config.trace_ratio > 0
        self._routes = Starlette(
            routes=_routes(service),
            exception_handlers={
                ApiError: _on_api_error,
                HTTPException: _on_http_exception,
                ClientGoneError: _on_client_gone,
                Exception: _on_exception,
            },
        )
        self._routes.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected ASGI scope {scope['type']!r}")
        exchange = Exchange(scope, receive, send, self._sampled)
        scope["exchange"] = exchange
        await self._routes(scope, receive, exchange.send)


def _routes(service: Service) -> list[Route]:
    small = Endpoints(service)
    completions = GenerationEndpoint(service, COMPLETIONS, read_completion, CompletionShape())
    chat = GenerationEndpoint(service, CHAT_COMPLETIONS, read_chat_completion, ChatShape())
    return [
        Route(COMPLETIONS, completions, methods=["POST"]),
        Route(CHAT_COMPLETIONS, chat, methods=["POST"]),
        Route("/v1/models", small.models),
        Route("/v1/models/{model:path}", small.model),
        Route("/tokenize", small.tokenize, methods=["POST"]),
        Route("/detokenize", small.detokenize, methods=["POST"]),
        Route("/health", small.health),
        Route("/ready", small.ready),
        Route("/version", small.version),
        Route("/metrics", small.metrics),
    ]


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return Response(error.body(), error.status, error.headers, media_type="application/json")


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: there is no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.scope['path'][:_SHOWN_PATH_CHARS]}"
    if error.status_code == 404:
        shaped = ApiError(404, f"there is no {what}", code="unknown_url")
    else:
        shaped = ApiError(error.status_code, f"{what}: {error.detail}", code="method_not_allowed")
    shaped.headers.update({k.lower(): v for k, v in (error.headers or {}).items()})
    return await _on_api_error(request, shaped)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


async def _on_exception(request: Request, error: Exception) -> Response:
    return await _on_api_error(request, internal_error())
