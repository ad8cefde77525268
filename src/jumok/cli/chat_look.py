"""What an answer of a conversation read: each message a passage, what is no message apart."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jumok.tokens.passages import Passage, beginning, cut, turns

if TYPE_CHECKING:
    from jumok.lens.segments import Segments
    from jumok.model.conversation import Conversation, Turn


def answer_read(conversation: Conversation, name: str, how: str) -> Segments:
    """Read the last answer once more, all at once and watched, and measure what it read.

    The answer itself is written unwatched, at its own speed; here its tokens go through the model
    together, after the keys and values that were kept before them. `Conversation.keeps_before`
    must have been set.

    Args:
        conversation: after an answer.
        name: the model's.
        how: "chat" (each message a passage), "paragraphs" or "lines".
    """
    import torch

    from jumok.lens.segments import segments
    from jumok.lens.watch import watch

    turn = conversation.last
    assert turn is not None
    assert turn.before is not None
    model = conversation.model
    ids = [*turn.prompt_ids, *turn.answer_ids]
    new = torch.tensor([ids[len(turn.prompt_ids) - 1 :]], device=next(model.parameters()).device)
    with torch.inference_mode(), watch(model) as recording:
        model(new, None, turn.before, 1)
    turn.before = None  # its memory is free again
    found = segments(
        recording,
        conversation.tokenizer,
        _passages(conversation, turn, how),
        text=turn.prompt,
        prompt=len(turn.prompt_ids),
        ids=ids,
    )
    return dataclasses.replace(found, model=name)


def _passages(conversation: Conversation, turn: Turn, how: str) -> list[Passage]:
    from jumok.tokens.chat import render

    try:
        text, said = render(conversation.tokenizer, turn.messages, True)
    except ValueError:  # the template changes the messages
        text, said = turn.prompt, []
    assert text == turn.prompt
    found = turns(text)  # those that the template adds, too, such as a system prompt
    if not said or len(found) > len(said):
        said = found or [Passage("conversation", 0, len(text))]
    if how != "chat":
        return cut(text, how, said)
    return [
        Passage(f"{one.name}: {beginning(text[one.start : one.end])}", one.start, one.end)
        for one in said
        if text[one.start : one.end].strip()
    ]
