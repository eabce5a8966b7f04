"""A checked request for tokens, however it was sent: what completions and chat completions have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.gateway.answer_options import AnswerOptions
from engine.gateway.errors import bad_request
from engine.gateway.prompts import ContextLimit, Prompts, read_chat, read_prompt
from engine.gateway.sampling import read_sampling
from engine.gateway.schemas import ChatBody, CompletionBody, GenerationBody, decode
from engine.messages import SamplingParams, Submit

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat answer may take what room is left."""
MAX_SEQUENCES = 256
"""Prompts times choices of one request."""
MAX_LOGPROBS_TOLD = 1_000_000
"""Log probabilities that one response may hold: some 250 MB while it is put together."""

_PRIVATE_FIELDS = frozenset({"cache_salt", "bad_words"})
"""Of these only that they were given is recorded."""
_CONTENT_FIELDS = frozenset({"model", "prompt", "messages"})


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``given`` holds the parameters that the client sent, for the record."""

    model: str
    prompts: Prompts
    params: SamplingParams
    options: AnswerOptions
    stream: bool
    given: dict[str, object]
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    told_logprobs: int = 0  # at most

    @property
    def num_sequences(self) -> int:
        """One for each prompt and choice, and those from which the best are chosen."""
        return self.prompts.count * self.options.best_of

    def estimated_tokens(self, longest_sequence: int) -> int:
        """Prompt and answer tokens of all sequences, as far as can be told before tokenization.

        A log probability that is told weighs as much as a token: both are kept until the answer is written.
        """
        answer = self.params.max_tokens or longest_sequence
        per_choice = sum(min(prompt + answer, longest_sequence) for prompt in self.prompts.estimated_tokens())
        return self.options.best_of * per_choice + self.told_logprobs

    def submit(self, request_id: str, gateway: int) -> Submit:
        """The message that carries it into the engine."""
        return Submit(
            request_id=request_id,
            gateway=gateway,
            n=self.options.best_of,
            params=self.params,
            texts=self.prompts.texts,
            token_ids=self.prompts.token_ids,
            chat=self.prompts.chat,
            priority=self.priority,
            cache_salt=self.cache_salt,
        )


def read_completion(body: bytes, limit: ContextLimit) -> GenerationRequest:
    """Check a body of ``/v1/completions``. Raises ApiError 400."""
    decoded = decode(body, CompletionBody)
    if decoded.logprobs is True:
        raise bad_request("logprobs: a whole number between 0 and 20 is needed, got true", "logprobs", "invalid_value")
    logprobs = None if decoded.logprobs is False else decoded.logprobs
    max_tokens = COMPLETION_MAX_TOKENS if decoded.max_tokens is None else decoded.max_tokens
    if not max_tokens and not decoded.echo:
        raise bad_request("max_tokens: 0 is only for echo; at least 1 is needed", "max_tokens", "invalid_value")
    options = _options(decoded, logprobs, echo=bool(decoded.echo), prompt_only=not max_tokens)
    return _request(decoded, read_prompt(decoded.prompt), max_tokens, options, limit)


def read_chat_completion(body: bytes, limit: ContextLimit) -> GenerationRequest:
    """Check a body of ``/v1/chat/completions``. Raises ApiError 400."""
    decoded = decode(body, ChatBody)
    newer, older = decoded.max_completion_tokens, decoded.max_tokens
    if newer is not None and older is not None and newer != older:
        raise bad_request(
            "max_completion_tokens: differs from max_tokens, which means the same", "max_completion_tokens"
        )
    if decoded.top_logprobs and not decoded.logprobs:
        raise bad_request("top_logprobs: only with logprobs true", "top_logprobs")
    options = _options(decoded, (decoded.top_logprobs or 0) if decoded.logprobs else None)
    return _request(decoded, read_chat(decoded.messages), newer or older, options, limit)


def _options(
    body: GenerationBody, logprobs: int | None, echo: bool = False, prompt_only: bool = False
) -> AnswerOptions:
    n = body.n or 1
    best_of = body.best_of or n
    if best_of < n:
        raise bad_request(f"best_of: {best_of} is less than n, {n}", "best_of")
    if best_of > n and body.stream:
        raise bad_request("best_of: more than n cannot be streamed: the best is known only at the end", "best_of")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("prompt_logprobs: not with stream true", "prompt_logprobs")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options: only with stream true", "stream_options")
    return AnswerOptions(
        n=n,
        best_of=best_of,
        echo=echo,
        prompt_only=prompt_only,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _request(
    body: GenerationBody, prompts: Prompts, max_tokens: int | None, options: AnswerOptions, limit: ContextLimit
) -> GenerationRequest:
    choices = options.best_of
    if prompts.count * choices > MAX_SEQUENCES:
        field = "n" if choices == options.n else "best_of"
        raise bad_request(f"{field}: {prompts.count} prompts times {choices} are more than {MAX_SEQUENCES}", field)
    limit.check(prompts)
    params = read_sampling(body, max_tokens, options)
    told_logprobs = _check_logprobs(prompts, params, options, limit)
    return GenerationRequest(
        model=body.model,
        prompts=prompts,
        params=params,
        options=options,
        stream=bool(body.stream),
        given=_given(body),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        timeout_s=body.timeout,
        told_logprobs=told_logprobs,
    )


def _check_logprobs(prompts: Prompts, params: SamplingParams, options: AnswerOptions, limit: ContextLimit) -> int:
    """How many log probabilities may be told. Raises ApiError 400 for more than one request may take memory for."""
    told = {"logprobs": 0, "prompt_logprobs": 0}
    if params.logprobs is not None:  # best_of ranks by them, told or not
        answer = min(params.max_tokens or limit.tokens, limit.tokens)
        told["logprobs"] = prompts.count * answer * (params.logprobs + 1) * options.best_of
    if params.prompt_logprobs is not None:
        per_token = (params.prompt_logprobs + 1) * options.best_of
        told["prompt_logprobs"] = sum(prompts.most_tokens(limit.tokens)) * per_token
    count = sum(told.values())
    if count > MAX_LOGPROBS_TOLD:
        asked = {name: getattr(options, name) is not None for name in told}
        field = max((name for name in told if asked[name]), key=lambda name: told[name], default="best_of")
        raise bad_request(
            f"{field}: this may take {count} log probabilities, more than {MAX_LOGPROBS_TOLD}; "
            "ask for fewer alternatives, choices, prompts or tokens",
            field,
        )
    return count


def _given(body: GenerationBody) -> dict[str, Any]:
    """What is recorded of a request: not what it says, nor what only its sender should know."""
    values = {name: getattr(body, name) for name in body.__struct_fields__ if name not in _CONTENT_FIELDS}
    given = {name: msgspec.to_builtins(value) for name, value in values.items() if value is not None}
    return given | dict.fromkeys(_PRIVATE_FIELDS & given.keys(), True)
