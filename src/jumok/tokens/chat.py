"""A conversation as the text that a model reads, by its own chat template."""

import datetime
import json
from collections.abc import Sequence
from typing import Any

from jumok.tokens.passages import Passage, numbered
from jumok.tokens.signs import shortened
from jumok.tokens.tokenizer import Tokenizer

__all__ = ["messages_in", "prompt_text", "render"]

_SHAPE = '{"role": "user", "content": "…"}'


def messages_in(text: str) -> list[dict[str, str]] | None:
    """The messages, if ``text`` is a JSON list of objects with "role" and "content".

    Raises:
        ValueError: such a list, with a content that is no text.
    """
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not found or not all(isinstance(one, dict) and {"role", "content"} <= one.keys()
                            for one in found):  # fmt: skip
        return None
    return [
        {"role": str(one["role"]), "content": _plain(one["content"], number)}
        for number, one in enumerate(found, 1)
    ]


def _plain(content: Any, number: int) -> str:
    """Text, also where it comes in parts: [{"type": "text", "text": "…"}]."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"message {number} has the content {shortened(repr(content), 60)}: only text can be "
            f"read, {_SHAPE}"
        )
    return "".join(map(str, texts))


def render(
    tokenizer: Tokenizer, messages: Sequence[dict[str, str]], ask: bool = False
) -> tuple[str, list[Passage]]:
    """The conversation as one text, and where each message stands in it.

    The text begins with the special tokens that the template writes: encode it without others.

    Args:
        tokenizer: of a model that has a chat template (Jinja).
        messages: {"role": …, "content": …} each.
        ask: end with what asks the model for its answer.

    Raises:
        ValueError: there is no template, it refuses these messages, or changes what they say.
    """
    text = prompt_text(tokenizer, messages, ask)
    # Marks in the place of the contents show where each of them goes.
    marks = [f"\ue000{number}\ue001" for number in range(len(messages))]
    marked = [{**one, "content": mark} for one, mark in zip(messages, marks, strict=True)]
    frame = prompt_text(tokenizer, marked, ask)
    for trimmed in (False, True):
        passages, whole, rest = [], "", frame
        for one, mark in zip(messages, marks, strict=True):
            before, found, rest = rest.partition(mark)
            if not found:
                break
            content = one["content"].strip() if trimmed else one["content"]
            whole += before
            passages.append(Passage(one["role"], len(whole), len(whole) + len(content)))
            whole += content
        if whole + rest == text and len(passages) == len(messages):
            return text, numbered(passages)
    raise ValueError(
        "the model's chat template changes the messages, so that they can't be found again in "
        "its text; give the text itself, with its marks"
    )


def prompt_text(tokenizer: Tokenizer, messages: Sequence[dict[str, str]], ask: bool = False) -> str:
    """The conversation as one text, as `render` gives it; the template may change the messages.

    The template is filled in as transformers does it, in a sandbox, as anybody may have written
    it.
    """
    template = tokenizer.chat_template
    if template is None:
        raise ValueError(
            "the model has no chat template; give its prompt as plain text, with the marks that "
            "the model was trained with"
        )
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    special = {name: value for name, value in tokenizer.config.items() if name.endswith("_token")}
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=ask, **special
        )
    except TemplateError as error:
        raise ValueError(f"the model's chat template refuses these messages: {error}") from error
