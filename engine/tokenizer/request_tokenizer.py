"""The tokenizer's work, apart from its process: requests in, ids or refusals out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from tokenizers import Tokenizer

from engine.messages import (
    ChatMessage,
    Enqueue,
    IdsReply,
    IdsToText,
    SamplingParams,
    SequenceSpec,
    Submit,
    TextReply,
    TextToIds,
)
from engine.tokenizer.bad_words import BadWords
from engine.tokenizer.chat_template import ChatTemplate, ChatTemplateError
from engine.tokenizer.limits import Limits, RequestRefusedError, check_min_tokens

_SEEDS = 2**63


class RequestTokenizer:
    """Turns Submit into Enqueue, and answers TextToIds and IdsToText. Raises RequestRefusedError."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        limits: Limits,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_progress` is called between the texts of a request, which may take seconds in all."""
        self._tokenizer = tokenizer
        self._template = template
        self._limits = limits
        self._bad_words = BadWords(tokenizer)
        self._on_progress = on_progress

    def enqueue(self, submit: Submit) -> Enqueue:
        """Tokenize and check a request."""
        param = "messages" if submit.chat else "prompt"
        prompts = []
        for ids in self._prompts(submit):  # one at a time: the first bad one of many long texts ends the work
            self._limits.check_prompt(ids, param)
            prompts.append(ids)
        return Enqueue(
            request_id=submit.request_id,
            gateway=submit.gateway,
            prompts=prompts,
            sequences=_sequences(len(prompts), submit.n, submit.params.seed),
            params=self._complete(submit.params, prompts),
            priority=submit.priority,
            cache_salt=submit.cache_salt,
        )

    def _complete(self, params: SamplingParams, prompts: list[list[int]]) -> SamplingParams:
        """Check what depends on vocabulary and counts, and fill in what only they tell."""
        self._limits.check_ids([token_id for token_id, _ in params.logit_bias], "logit_bias")
        max_tokens = self._limits.answer_tokens(prompts, params.max_tokens)
        check_min_tokens(params.min_tokens, max_tokens)
        bad_word_ids = self._bad_words.ids(params.bad_words)
        return msgspec.structs.replace(params, max_tokens=max_tokens, bad_words=(), bad_word_ids=bad_word_ids)

    def ids_reply(self, request: TextToIds) -> IdsReply:
        """``POST /tokenize``."""
        if request.chat:
            ids = self._encode_chat(request.chat)
        else:
            ids = self._encode(request.text, request.add_special_tokens, "prompt")
        strings = [self._tokenizer.id_to_token(i) or "" for i in ids] if request.return_token_strs else None
        return IdsReply(request.request_id, request.gateway, ids, strings)

    def text_reply(self, request: IdsToText) -> TextReply:
        """``POST /detokenize``. Special tokens are shown."""
        ids = list(request.token_ids)
        self._limits.check_ids(ids, "tokens")
        return TextReply(request.request_id, request.gateway, self._tokenizer.decode(ids, skip_special_tokens=False))

    def _prompts(self, submit: Submit) -> Iterator[list[int]]:
        if submit.chat:
            yield self._encode_chat(submit.chat)
        yield from map(list, submit.token_ids)
        for text in submit.texts:
            yield self._encode(text, add_special_tokens=True, param="prompt")

    def _encode_chat(self, chat: Sequence[ChatMessage]) -> list[int]:
        """Template, then ids. The template writes the special tokens that belong there, so none are added."""
        if self._template is None:
            message = "the model has no chat template; use /v1/completions, or start with --chat-template FILE"
            raise RequestRefusedError(message, "messages")
        try:
            text = self._template.render(chat)
        except ChatTemplateError as e:
            raise RequestRefusedError(f"the chat template refuses these messages: {e}", "messages") from e
        return self._encode(text, add_special_tokens=False, param="messages")

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        self._on_progress()
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as e:  # bare ones, where a vocabulary has no token for some character
            raise RequestRefusedError(f"the text cannot be tokenized: {e}", param) from e


def _sequences(num_prompts: int, n: int, seed: int | None) -> list[SequenceSpec]:
    """One for each (prompt, choice). Choices differ in seed, so that a seeded request repeats as a whole."""
    return [
        SequenceSpec(prompt * n + choice, prompt, None if seed is None else (seed + choice) % _SEEDS)
        for prompt in range(num_prompts)
        for choice in range(n)
    ]
