"""Conversations as the text that a model reads."""

from __future__ import annotations

import json

import pytest

from jumok.tokens import Tokenizer
from jumok.tokens.chat import messages_in, render
from small_tokenizers import byte_level

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MESSAGES = [{"role": "user", "content": " Hi {{x}}\n"}, {"role": "user", "content": ""}]


def tokenizer(template: str | None) -> Tokenizer:
    return Tokenizer(byte_level(), {"chat_template": template, "bos_token": "<end>"})


def test_each_message_is_found_in_the_text() -> None:
    text, found = render(tokenizer(CHATML), MESSAGES, ask=True)
    assert text == (
        "<|im_start|>user\n Hi {{x}}\n<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert [(one.name, text[one.start : one.end]) for one in found] == [
        ("user 1", " Hi {{x}}\n"),
        ("user 2", ""),
    ]


def test_a_template_that_trims() -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    text, found = render(tokenizer(template), MESSAGES)
    assert text == "<end>[Hi {{x}}][]"
    assert [text[one.start : one.end] for one in found] == ["Hi {{x}}", ""]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alt"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "changes the messages"),
        ("{% for m in messages[1:] %}{{ m.content }}{% endfor %}", "changes the messages"),
        ("{{ messages.__class__.__mro__ }}", "refuses these messages"),
        ("{% for", "refuses these messages"),
    ],
)
def test_templates_that_can_not_be_used(template: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render(tokenizer(template), MESSAGES)


def test_the_same_text_as_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    ours = tokenizer(CHATML)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=ours.backend, chat_template=CHATML
    )
    expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert render(ours, MESSAGES, ask=True)[0] == expected


def test_messages_are_a_json_list_of_roles_and_contents() -> None:
    assert messages_in(json.dumps(MESSAGES)) == MESSAGES
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]
    assert messages_in(json.dumps(parts)) == [{"role": "user", "content": "ab"}]
    for text in ("Hello", "[1, 2]", "[not json", "[]", '{"role": "user"}', '[{"role": "user"}]'):
        assert messages_in(text) is None
    with pytest.raises(ValueError, match=r"message 1 has the content .*only text can be read"):
        messages_in(json.dumps([{"role": "user", "content": [{"type": "image"}]}]))
