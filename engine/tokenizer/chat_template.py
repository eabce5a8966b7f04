"""Chat templates, rendered as Hugging Face defines it (transformers, "Chat templates").

A template comes with the model, so it runs in jinja2's sandbox and is not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.messages import ChatMessage

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplateError(Exception):
    """A template cannot be loaded, or cannot render these messages; the message says why."""


class ChatTemplate:
    """A compiled template, and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`. Raises ChatTemplateError."""
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as e:
            raise ChatTemplateError(str(e)) from e
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Iterable[ChatMessage]) -> str:
        """The prompt text, up to where the assistant's answer begins. Raises ChatTemplateError."""
        try:
            return self._template.render(
                **self._special_tokens,
                messages=[_as_dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        except Exception as e:  # whatever the template's own code makes of the messages
            raise ChatTemplateError(str(e) or type(e).__name__) from e


def load_chat_template(folder: Path, file: str) -> ChatTemplate | None:
    """The template in `file`, else the model's own; None where the model has none.

    Raises ChatTemplateError when a template is there and cannot be used.
    """
    settings = _tokenizer_config(folder)
    try:
        source = Path(file).expanduser().read_text() if file else _own_template(folder, settings)
    except OSError as e:
        raise ChatTemplateError(f"cannot read {file}: {e.strerror}") from e
    return None if source is None else ChatTemplate(source, _special_tokens(settings))


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    try:
        settings: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise ChatTemplateError(f"{file} is not valid JSON: {e}") from e
    return settings


def _own_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text()
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    values = {name: settings.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: value["content"] if isinstance(value, dict) else value for name, value in values.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _as_dict(message: ChatMessage) -> dict[str, str]:
    """A turn as templates know it. They add texts up, so an assistant's turn without content has "" ."""
    turn = {"role": message.role, "content": message.content or ""}
    return turn if message.name is None else turn | {"name": message.name}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's turns for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The nodes inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes for HTML; this one leaves the text as it is."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
