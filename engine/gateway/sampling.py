"""From the fields of a body to the parameters that the engine samples with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.gateway.answer_options import AnswerOptions
from engine.gateway.errors import bad_request
from engine.gateway.schemas import MAX_TOKEN_ID, GenerationBody
from engine.messages import SamplingParams

GREEDY_BELOW = 1e-4
"""Temperatures up to this one mean 0: the quotient would only overflow."""

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def read_sampling(body: GenerationBody, max_tokens: int | None, options: AnswerOptions) -> SamplingParams:
    """`max_tokens` is the body's, None for "what room is left". Raises ApiError 400."""
    temperature = 1.0 if body.temperature is None else body.temperature
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingParams(
        max_tokens=1 if options.prompt_only else max_tokens,
        temperature=0.0 if temperature <= GREEDY_BELOW else temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        seed=body.seed,
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        include_stop_str=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        min_tokens=_min_tokens(body.min_tokens or 0, max_tokens),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_logit_bias(body.logit_bias or {}),
        bad_words=tuple(body.bad_words or ()),
        logprobs=options.engine_logprobs,
        prompt_logprobs=options.engine_prompt_logprobs,
        echo=options.echo,
    )


def _min_tokens(at_least: int, max_tokens: int | None) -> int:
    if max_tokens is not None and at_least > max_tokens:
        raise bad_request(f"min_tokens: {at_least} is more than max_tokens, {max_tokens}", "min_tokens")
    return at_least


def _logit_bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """Token ids are keys of an object, so they come as text. Whether they exist, the tokenizer knows."""
    for key in given:
        if not _TOKEN_ID.fullmatch(key) or int(key) > MAX_TOKEN_ID:
            shown = key if len(key) <= 20 and key.isprintable() else f"a text of {len(key)} characters"
            raise bad_request(f'logit_bias: keys are token ids like "50", got {shown!r}', "logit_bias")
    return tuple((int(key), bias) for key, bias in given.items())
