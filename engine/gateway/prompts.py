"""What a request wants continued: texts, token ids or a chat, in all the forms that clients send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.gateway.errors import ApiError, bad_request
from engine.gateway.schemas import TokenId, Turn, check_neutral, invalid
from engine.messages import ChatMessage

MAX_PROMPTS = 256
_CHARS_PER_TOKEN = 4
"""A usual value for English text; only for the estimate of what a request will take."""
_BYTES_PER_CHAR = 4
"""UTF-8's most."""

_Texts = Annotated[list[str], Meta(max_length=MAX_PROMPTS)]
_Ids = list[TokenId]
_IdLists = Annotated[list[Annotated[list[TokenId], Meta(min_length=1)]], Meta(max_length=MAX_PROMPTS)]


class Prompts(msgspec.Struct, frozen=True):
    """Exactly one of the three is not empty."""

    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    chat: tuple[ChatMessage, ...] = ()

    @property
    def count(self) -> int:
        """How many prompts there are."""
        return len(self.texts) or len(self.token_ids) or 1

    @property
    def field(self) -> str:
        """The field they came in."""
        return "messages" if self.chat else "prompt"

    def estimated_tokens(self) -> list[int]:
        """Tokens of each prompt: exact for ids, a guess for text."""
        if self.token_ids:
            return [len(ids) for ids in self.token_ids]
        return [chars // _CHARS_PER_TOKEN + 1 for chars in self.text_chars()]

    def most_tokens(self, longest: int) -> list[int]:
        """Tokens that each prompt can have at most: no token is shorter than a byte, and `longest` fits."""
        if self.chat:
            return [longest]
        if self.token_ids:
            return [len(ids) for ids in self.token_ids]
        return [min(_BYTES_PER_CHAR * len(text) + 1, longest) for text in self.texts]

    def text_chars(self) -> list[int]:
        """Characters of each prompt; of a chat without those that the template adds."""
        if self.chat:
            return [sum(len(turn.content or "") for turn in self.chat)]
        return [len(text) for text in self.texts]


class ContextLimit(msgspec.Struct, frozen=True):
    """What can never fit, told without tokenizing.

    No token stands for more characters than the longest one, and each turn of a chat takes a token at least.
    """

    tokens: int
    token_chars: int

    @classmethod
    def from_folder(cls, folder: Path, tokens: int) -> ContextLimit:
        """Read the vocabulary from tokenizer.json. Raises OSError, KeyError or ValueError."""
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]  # {piece: id}, or [[piece, score], …] (Unigram)
        pieces = vocabulary if isinstance(vocabulary, dict) else (piece for piece, _ in vocabulary)
        added = (token["content"] for token in tokenizer.get("added_tokens", []))
        return cls(tokens, max(map(len, (*pieces, *added))))

    def check(self, prompts: Prompts) -> None:
        """Raise ApiError 400 for a prompt that is longer than the context whatever its tokens are."""
        for ids in prompts.token_ids:
            if len(ids) > self.tokens:
                raise self._too_long(f"the prompt has {len(ids)} tokens", prompts.field)
        if len(prompts.chat) > self.tokens:
            raise self._too_long(f"the chat has {len(prompts.chat)} turns", prompts.field)
        for chars in prompts.text_chars():
            if chars > self.tokens * self.token_chars:
                raise self._too_long(f"the prompt has {chars} characters", prompts.field)

    def _too_long(self, size: str, field: str) -> ApiError:
        return bad_request(
            f"{field}: {size}, more than fits the context of {self.tokens} tokens", field, "context_length_exceeded"
        )


def read_prompt(value: Any) -> Prompts:
    """The ``prompt`` field: text, list of texts, list of ids, or list of lists of ids. Raises ApiError 400."""
    if isinstance(value, str):
        return Prompts(texts=(value,))
    if not isinstance(value, list) or not value:
        raise bad_request("prompt: give text, a list of texts, token ids or a list of lists of ids", "prompt")
    match value[0]:
        case str():
            return Prompts(texts=tuple(_convert(value, _Texts)))
        case list():
            return Prompts(token_ids=tuple(tuple(ids) for ids in _convert(value, _IdLists)))
        case _:
            return Prompts(token_ids=(tuple(_convert(value, _Ids)),))


def _convert(value: list[Any], kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as e:
        raise invalid(e, kind, value, "prompt") from None


def read_chat(turns: Sequence[Turn]) -> Prompts:
    """The ``messages`` field. Raises ApiError 400."""
    return Prompts(chat=tuple(_read_turn(turn, f"messages[{i}]") for i, turn in enumerate(turns)))


def _read_turn(turn: Turn, at: str) -> ChatMessage:
    check_neutral(turn, at + ".")
    if turn.tool_calls and turn.role != "assistant":
        raise bad_request(f"{at}.tool_calls: only an assistant's turn has them", f"{at}.tool_calls")
    if turn.content is None and turn.role != "assistant":
        raise bad_request(f"{at}.content: a {turn.role} turn needs content", f"{at}.content")
    content = turn.content if isinstance(turn.content, str | None) else _join_parts(turn.content, f"{at}.content")
    role = "system" if turn.role == "developer" else turn.role
    return ChatMessage(role, content, turn.name)


def _join_parts(parts: list[dict[str, Any]], at: str) -> str:
    """Text parts, a line each."""
    if not parts:
        raise bad_request(f"{at}: the list is empty", at)
    return "\n".join(_part_text(part, f"{at}[{i}]") for i, part in enumerate(parts))


def _part_text(part: dict[str, Any], at: str) -> str:
    if part.get("type") != "text":
        raise bad_request(f"{at}: parts of type {part.get('type')!r} are not supported, only 'text'", at)
    if not isinstance(part.get("text"), str) or len(part) > 2:
        raise bad_request(f"{at}: a text part has the fields 'type' and 'text'", at)
    text: str = part["text"]
    return text
