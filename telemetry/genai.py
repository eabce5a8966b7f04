"""OpenTelemetry's GenAI semantic conventions, as far as Vitrine uses them (spans and metrics)."""

from __future__ import annotations

PROVIDER = "vitrine"
_OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat"}
_RESPONSE_PREFIXES = {"/v1/completions": "cmpl-", "/v1/chat/completions": "chatcmpl-"}
OPERATIONS = tuple(_OPERATIONS.values())
ENDPOINTS = tuple(_OPERATIONS)


def operation_name(endpoint: str) -> str:
    """``gen_ai.operation.name`` of a route."""
    return _OPERATIONS.get(endpoint, "other")


def response_id(endpoint: str, request_id: str) -> str:
    """The ``id`` that the API's answer carries."""
    return _RESPONSE_PREFIXES.get(endpoint, "") + request_id.removeprefix("req-")
