"""Bodies of requests, as clients may send them.

Types are strict ("5", true and 1.5 are no integers, NaN and Infinity no numbers) and unknown fields are refused.
A field that OpenAI's or vLLM's API has and this server does not support is accepted with the value that changes
nothing (`only`) and refused with any other: nothing is accepted and ignored. null always means "not given".
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta

from engine.complaints import complain, locate
from engine.gateway.errors import ApiError, bad_request

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_STOP_TOKEN_IDS = 128
MAX_NAME_CHARS = 256
MAX_USER_CHARS = 1000
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 200
MAX_SALT_CHARS = 256
MAX_TIMEOUT_S = 86_400

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_TOKEN_ID = 2**31 - 1

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Count = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]

Body = TypeVar("Body", bound="StrictBody")


def only(*neutral: object) -> Meta:
    """Marks a field that is accepted with these values (and null) alone, since they change nothing."""
    return Meta(extra={"only": neutral})


class StrictBody(msgspec.Struct, forbid_unknown_fields=True):
    """Base of all bodies."""


class StreamOptions(StrictBody, kw_only=True):
    """How to stream."""

    include_usage: bool | None = None


class GenerationBody(StrictBody, kw_only=True):
    """What completions and chat completions have in common."""

    model: Name
    temperature: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID)] | None = None
    seed: Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Alternatives | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    user: Annotated[str, Meta(max_length=MAX_USER_CHARS)] | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None

    length_penalty: Annotated[float | None, only(1.0)] = None
    use_beam_search: Annotated[bool | None, only(False)] = None
    spaces_between_special_tokens: Annotated[bool | None, only(True)] = None
    truncate_prompt_tokens: Annotated[Any, only()] = None
    allowed_token_ids: Annotated[Any, only()] = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    metadata: Annotated[Any, only({})] = None
    store: Annotated[bool | None, only(False)] = None


class CompletionBody(GenerationBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: Any = None  # text, texts, ids or lists of ids: see engine.gateway.prompts
    max_tokens: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    echo: bool | None = None
    logprobs: Alternatives | bool | None = None  # false, too, is what clients send for none
    suffix: Annotated[Any, only()] = None
    add_special_tokens: Annotated[bool | None, only(True)] = None


class Turn(StrictBody, kw_only=True):
    """One message of a chat. Of ``tool_calls`` only the presence counts: templates here render text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: Name | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None


Message = Annotated[Turn, Meta(title="message")]


class ChatBody(GenerationBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    echo: Annotated[bool | None, only(False)] = None
    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    parallel_tool_calls: Annotated[bool | None, only(True, False)] = None
    modalities: Annotated[Any, only(["text"])] = None
    service_tier: Annotated[Any, only("auto", "default")] = None
    add_generation_prompt: Annotated[bool | None, only(True)] = None
    continue_final_message: Annotated[bool | None, only(False)] = None
    add_special_tokens: Annotated[bool | None, only(False)] = None
    chat_template: Annotated[Any, only()] = None
    chat_template_kwargs: Annotated[Any, only({})] = None


class TokenizeBody(StrictBody, kw_only=True):
    """``POST /tokenize``: a text or a chat."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: Annotated[bool | None, only(True)] = None
    continue_final_message: Annotated[bool | None, only(False)] = None
    chat_template: Annotated[Any, only()] = None
    chat_template_kwargs: Annotated[Any, only({})] = None
    tools: Annotated[Any, only([])] = None


class DetokenizeBody(StrictBody, kw_only=True):
    """``POST /detokenize``."""

    model: Name | None = None
    tokens: list[TokenId]


def decode(body: bytes, kind: type[Body]) -> Body:
    """Decode and check a body. Raises ApiError 400 naming the field."""
    try:
        decoded = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as e:
        raise invalid(e, kind, _as_far_as_known(body)) from None
    except (msgspec.DecodeError, RecursionError) as e:
        raise bad_request(f"the body is not valid JSON: {e}", code="invalid_json") from None
    check_neutral(decoded)
    return decoded


def _as_far_as_known(body: bytes) -> Any:
    """A body that was refused, whatever it is; UNSET when numbers in it are too large for that."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return UNSET


_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


def invalid(error: msgspec.ValidationError, kind: Any, value: Any, base: str = "") -> ApiError:
    """Why `value` is no `kind`, as a 400; `base` is the field that was looked at, where not the whole body."""
    reason, path = locate(error)
    param = base + path
    field = _FIELD.fullmatch(reason)
    if field is None:
        return bad_request(f"{param or 'the body'}: {complain(kind, value, path)}", param or None, "invalid_value")
    param = f"{param}.{field[2]}" if param else field[2]
    if field[1] == "missing required":
        return bad_request(f"{param}: this field is required", param, "missing_required_parameter")
    return bad_request(f"{param}: there is no such field, or it is not supported", param, "unknown_parameter")


@cache
def _neutral_values(kind: type[StrictBody]) -> list[tuple[str, tuple[object, ...]]]:
    """Fields of a body that are marked with `only`, and their neutral values."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for mark in get_args(hint)[1:]:
            if isinstance(mark, Meta) and mark.extra and "only" in mark.extra:
                found.append((name, mark.extra["only"]))
    return found


def check_neutral(body: StrictBody, base: str = "") -> None:
    """Raise ApiError 400 when a field that is not supported asks for something."""
    for name, neutral in _neutral_values(type(body)):
        value = getattr(body, name)
        if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
            accepted = ", ".join(["null", *(msgspec.json.encode(n).decode() for n in neutral)])
            raise bad_request(
                f"{base}{name}: this server does not support it (accepted: {accepted})",
                base + name,
                "unsupported_parameter",
            )
