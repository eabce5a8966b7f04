"""A checked request for tokens, however it was sent: what completions and chat completions have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.gateway.errors import bad_request
from engine.gateway.prompts import ContextLimit, Prompts, read_chat, read_prompt
from engine.gateway.schemas import ChatBody, CompletionBody, GenerationBody, decode
from engine.messages import SamplingParams, Submit

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat answer may take what room is left."""
GREEDY_BELOW = 1e-4
"""Temperatures up to this one mean 0: the quotient would only overflow."""
MAX_SEQUENCES = 256
"""Prompts times choices of one request."""

_CONTENT_FIELDS = frozenset({"model", "prompt", "messages"})


class GenerationRequest(msgspec.Struct, frozen=True):
    """``given`` holds the parameters that the client sent, for the record."""

    model: str
    prompts: Prompts
    n: int
    params: SamplingParams
    stream: bool
    include_usage: bool
    return_token_ids: bool
    given: dict[str, object]

    @property
    def num_sequences(self) -> int:
        """One for each (prompt, choice)."""
        return self.prompts.count * self.n

    def estimated_tokens(self, longest_sequence: int) -> int:
        """Prompt and answer tokens of all sequences, as far as can be told before tokenization."""
        answer = self.params.max_tokens or longest_sequence
        return self.n * sum(min(prompt + answer, longest_sequence) for prompt in self.prompts.estimated_tokens())

    def submit(self, request_id: str, gateway: int) -> Submit:
        """The message that carries it into the engine."""
        prompts = self.prompts
        return Submit(request_id, gateway, self.n, self.params, prompts.texts, prompts.token_ids, prompts.chat)


def read_completion(body: bytes, limit: ContextLimit) -> GenerationRequest:
    """Check a body of ``/v1/completions``. Raises ApiError 400."""
    decoded = decode(body, CompletionBody)
    return _request(decoded, read_prompt(decoded.prompt), decoded.max_tokens or COMPLETION_MAX_TOKENS, limit)


def read_chat_completion(body: bytes, limit: ContextLimit) -> GenerationRequest:
    """Check a body of ``/v1/chat/completions``. Raises ApiError 400."""
    decoded = decode(body, ChatBody)
    newer, older = decoded.max_completion_tokens, decoded.max_tokens
    if newer is not None and older is not None and newer != older:
        raise bad_request(
            "max_completion_tokens: differs from max_tokens, which means the same", "max_completion_tokens"
        )
    return _request(decoded, read_chat(decoded.messages), newer or older, limit)


def _request(body: GenerationBody, prompts: Prompts, max_tokens: int | None, limit: ContextLimit) -> GenerationRequest:
    n = body.n or 1
    stream = bool(body.stream)
    if body.best_of not in (None, n):
        raise bad_request("best_of: only the same number as n is supported", "best_of", "unsupported_parameter")
    if body.stream_options is not None and not stream:
        raise bad_request("stream_options: only with stream true", "stream_options")
    if prompts.count * n > MAX_SEQUENCES:
        raise bad_request(f"n: {prompts.count} prompts times {n} choices are more than {MAX_SEQUENCES}", "n")
    limit.check(prompts)
    return GenerationRequest(
        model=body.model,
        prompts=prompts,
        n=n,
        params=_sampling(body, max_tokens),
        stream=stream,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        return_token_ids=bool(body.return_token_ids),
        given=_given(body),
    )


def _sampling(body: GenerationBody, max_tokens: int | None) -> SamplingParams:
    temperature = 1.0 if body.temperature is None else body.temperature
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if temperature <= GREEDY_BELOW else temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        seed=body.seed,
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        include_stop_str=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
    )


def _given(body: GenerationBody) -> dict[str, Any]:
    values = {name: getattr(body, name) for name in body.__struct_fields__ if name not in _CONTENT_FIELDS}
    return {name: msgspec.to_builtins(value) for name, value in values.items() if value is not None}
