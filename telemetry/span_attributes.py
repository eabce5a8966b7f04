"""What spans say: attributes by OpenTelemetry's HTTP and GenAI conventions, and status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import Status, StatusCode

from telemetry.facts import RequestFacts, SequenceFacts
from telemetry.genai import PROVIDER, operation_name, response_id
from telemetry.samples import percentile

Attributes = dict[str, Any]


def status(facts: RequestFacts) -> Status:
    """ERROR for a request that was refused, failed or aborted."""
    if not facts.error_type or facts.terminal is None:
        return Status(StatusCode.UNSET)
    return Status(StatusCode.ERROR, facts.terminal.error_message or facts.error_type)


def server_attributes(facts: RequestFacts, address: tuple[str, int]) -> Attributes:
    """Of the SERVER span. `address` is where the API listens."""
    received = facts.received
    attributes: Attributes = {
        "http.request.method": "POST",
        "http.route": received.endpoint,
        "url.path": received.endpoint,
        "url.scheme": "http",
        "server.address": address[0],
        "server.port": address[1],
        "gen_ai.operation.name": operation_name(received.endpoint),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.response.id": response_id(received.endpoint, received.request_id),
        "gen_ai.response.finish_reasons": [str(s.finish_reason) for s in facts.sequences if s.finish_reason],
        "gen_ai.usage.input_tokens": facts.prompt_tokens,
        "gen_ai.usage.output_tokens": facts.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": facts.cached_tokens,
        "gen_ai.request.stream": received.stream,
        "vitrine.request_id": received.request_id,
        **_request_attributes(received.model, received.params),
    }
    optional = {
        "vitrine.replica": facts.replica,
        "vitrine.client_request_id": received.client_request_id,
        "http.response.status_code": facts.terminal.http_status if facts.terminal else 0,
        "error.type": facts.error_type,
    }
    return attributes | {name: value for name, value in optional.items() if value}


_PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}


def _request_attributes(model: str, params: Mapping[str, object]) -> Attributes:
    attributes: Attributes = {}
    if model:
        attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = model
    for name, attribute in _PARAMETERS.items():
        if isinstance(params.get(name), int | float):
            attributes[attribute] = params[name]
    stop, choices = params.get("stop"), params.get("n")
    if isinstance(stop, str | list | tuple):
        attributes["gen_ai.request.stop_sequences"] = [stop] if isinstance(stop, str) else list(map(str, stop))
    if isinstance(choices, int) and choices != 1:
        attributes["gen_ai.request.choice.count"] = choices
    return attributes


def itl_attributes(sequence: SequenceFacts) -> Attributes:
    """p50, p99 and maximum of a sequence's ITL."""
    ordered = sorted(sequence.gaps_s())
    if not ordered:
        return {}
    return {
        "vitrine.decode.itl_p50_s": percentile(ordered, 0.5),
        "vitrine.decode.itl_p99_s": percentile(ordered, 0.99),
        "vitrine.decode.itl_max_s": ordered[-1],
    }
