from __future__ import annotations

import json

import pytest

from engine.messages import ChatMessage
from engine.tokenizer.chat_template import ChatTemplate, ChatTemplateError, load_chat_template

CHAT = [ChatMessage("user", "Hi <b>"), ChatMessage("assistant", None), ChatMessage("user", "ďá", name="Al")]


def render(source: str, chat=CHAT, **special) -> str:
    return ChatTemplate(source, special).render(chat)


def test_roles_contents_names_and_special_tokens_are_there():
    source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}:{{ m.name }}:{{ m['content'] }}]{% endfor %}"
    assert render(source, bos_token="<s>") == "<s>[user::Hi <b>][assistant::][user:Al:ďá]"


def test_blocks_leave_no_lines_and_loops_have_controls():
    source = "{% for m in messages %}\n    {% if loop.index == 2 %}{% break %}{% endif %}\n{{ m.role }}\n{% endfor %}"
    assert render(source) == "user\n"


def test_json_is_not_escaped():
    assert render("{{ messages[2] | tojson }}") == json.dumps(
        {"role": "user", "content": "ďá", "name": "Al"}, ensure_ascii=False
    )
    assert "<b>" in render("{{ messages[0] | tojson(indent=2) }}")


def test_generation_blocks_are_their_content():
    assert render("{% generation %}{{ messages[0].role }}{% endgeneration %}!") == "user!"


def test_the_answer_is_prompted_for_and_tools_are_none():
    assert render("{{ add_generation_prompt }} {{ tools is none }} {{ strftime_now('%Y') | length }}") == "True True 4"


def test_a_template_can_refuse():
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("source", ["{{ messages.x.y }}", "{{ 1 + 'a' }}", "{{ ''.__class__.__mro__[1].x }}"])
def test_what_goes_wrong_inside_is_a_template_error(source):
    with pytest.raises(ChatTemplateError):
        render(source)


def test_templates_cannot_change_the_messages():
    with pytest.raises(ChatTemplateError):
        render("{{ messages.append(1) }}")


def test_a_syntax_error_is_found_when_loading():
    with pytest.raises(ChatTemplateError, match="Expected an expression"):
        ChatTemplate("{% if %}", {})


def settings(folder, **values) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_the_given_file_comes_before_the_models_own_templates(tmp_path):
    settings(tmp_path, chat_template="C", eos_token={"content": "</s>"})
    assert load_chat_template(tmp_path, "").render(CHAT) == "C"
    (tmp_path / "chat_template.jinja").write_text("J{{ eos_token }}")
    assert load_chat_template(tmp_path, "").render(CHAT) == "J</s>"
    (tmp_path / "mine").write_text("F")
    assert load_chat_template(tmp_path, str(tmp_path / "mine")).render(CHAT) == "F"


def test_of_several_templates_the_default_one_is_taken(tmp_path):
    settings(tmp_path, chat_template=[{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}])
    assert load_chat_template(tmp_path, "").render(CHAT) == "D"


def test_a_model_may_have_no_template(tmp_path):
    assert load_chat_template(tmp_path, "") is None


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ChatTemplateError, match="nowhere"):
        load_chat_template(tmp_path, "/nowhere")
