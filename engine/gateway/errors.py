"""Errors as clients see them, in the shape that OpenAI gave them."""

from __future__ import annotations

import msgspec

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"
TIMEOUT = "timeout"


class ApiError(Exception):
    """A request ends with this. ``param`` names the field to blame, ``code`` the reason, for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def error_type(self) -> str:
        """The name under which the error is recorded: one of few, never made of what a client sent."""
        return self.code or self.kind

    def body(self) -> bytes:
        """``{"error": {"message", "type", "param", "code"}}``."""
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the client must change the request."""
    return ApiError(400, message, param=param, code=code)


def unauthorized() -> ApiError:
    """401."""
    return ApiError(
        401,
        "missing or wrong API key: send it as 'Authorization: Bearer KEY'",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def model_not_found(name: str, served: str) -> ApiError:
    """404: this server has another model."""
    return ApiError(
        404,
        f"the model {name!r} does not exist here; this server has {served!r}",
        param="model",
        code="model_not_found",
    )


def body_too_large(limit_bytes: int) -> ApiError:
    """413."""
    return ApiError(413, f"the request body is longer than {limit_bytes} bytes", code="body_too_large")


def overloaded(what: str) -> ApiError:
    """429: all replicas have as much in flight as they may."""
    return ApiError(429, what, RATE_LIMIT, code="rate_limit_exceeded", headers={"retry-after": "1"})


def unavailable(message: str, code: str) -> ApiError:
    """503: the server cannot do it now, but will again."""
    return ApiError(503, message, SERVER, code=code, headers={"retry-after": "1"})


def deadline_exceeded(timeout_s: float) -> ApiError:
    """504: the request took longer than it may."""
    return ApiError(504, f"the request was not done within {timeout_s:g} s", TIMEOUT, code="deadline_exceeded")


def internal_error(message: str = "internal error", code: str = "internal_error") -> ApiError:
    """500: our fault."""
    return ApiError(500, message, SERVER, code=code)
