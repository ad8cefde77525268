"""What every view of `Segments` says: who reads, what it read most, and what the number means."""

import math
from collections.abc import Sequence

from jumok.lens.segments import Part, Segments
from jumok.tokens import printable, shortened
from jumok.view.wording import SMALL_LEAD, layers_named, percent

MOST_PARTS = 12  # bars and rows of a list
MOST_SIGNS = 400  # of the answer
NEEDED = math.log(2.0)  # a loss from which on a passage is said to be needed, in nats
APART = {
    "first": ("the first token (the sink)", "first"),
    "special": ("special tokens", "special"),
    "between": ("between the segments", "between"),
}


def reader_name(data: Segments, reader: int = -1) -> str:
    """``the answer``, or ``6 “Can I return…”``."""
    place = reader % len(data.segments)
    if data.answered and place == len(data.segments) - 1:
        return "the answer"
    return part_name(data.segments[place].name, place)


def part_name(name: str, position: int | None) -> str:
    """A passage as it may stand in a sentence: its number and its name."""
    if position is None:
        return APART[name][0]
    name = cut_name(name)
    return f"{position + 1} “{name}”" if name else str(position + 1)


def cut_name(name: str, most: int = 40) -> str:
    """A name in one line, without what steers a terminal, and not too long."""
    name = printable(" ".join(name.split()))
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"


def row_name(part: Part) -> str:
    """A passage as it stands in a list."""
    if part.position is None:
        return APART[part.name][0]
    itself = " (itself)" if part.kind == "itself" else ""
    return f"{part.position + 1}  {cut_name(part.name)}{itself}"


def column_heads(data: Segments) -> list[str]:
    """Numbers of the passages, and a word for what stands apart."""
    return [*(str(number + 1) for number in range(len(data.segments))),
            *(APART[apart.kind][1] for apart in data.apart)]  # fmt: skip


def title(data: Segments) -> str:
    """The question that the data answers."""
    return f"Which passage did {reader_name(data)} read?"


def read_by(data: Segments) -> str:
    """Who read, how much and which layers were averaged."""
    name = printable(data.model) or "the model"
    return f"{name}, {data.tokens:,} tokens, {layers_named(data.layers)}"


def answer(data: Segments) -> str | None:
    """What the model wrote, shortened; `None` where it wrote nothing."""
    if not data.answered:
        return None
    text = " ".join(data.segments[-1].text.split())
    return printable(shortened(text, MOST_SIGNS)) or "nothing but special tokens"


def headline(data: Segments) -> list[str]:
    """The answer in words: what the last passage read, and of that what most for its length."""
    name = reader_name(data)
    begin = name[0].upper() + name[1:]
    parts = data.parts()
    if not any(part.share for part in parts):
        return [f"{begin} has no token that could read."]
    ranked = data.ranked()
    itself = next(part for part in parts if part.kind == "itself")
    said = [f"{percent(part.share)} from {_of(part)}" for part in ranked[:3]]
    if itself.even > 0:
        said.append(f"{percent(itself.share)} from itself")
    apart = [f"{part_name(part.name, None)} {percent(part.share)}"
             for part in parts if part.kind in APART and part.even > 0]  # fmt: skip
    lines = []
    if said:
        lines.append(f"{begin} took {_joined(said)}.")
    else:
        lines.append(f"{begin} saw no other passage.")
    if apart:
        lines.append(f"Apart: {', '.join(apart)}.")
    lines += _for_their_length(ranked)
    lines += _without(ranked)
    return lines


def _of(part: Part) -> str:
    return part_name(part.name, part.position)


def _for_their_length(ranked: Sequence[Part]) -> list[str]:
    """Of two passages or more: which is read most for its length, and whether the first leads."""
    if len(ranked) < 2:
        return []
    lines = []
    first, second = ranked[:2]
    if first.share - second.share < SMALL_LEAD:
        lines.append(
            f"Between {_number(first)} and {_number(second)} lies less than a point: read them as "
            "equal."
        )
    by_length = sorted(ranked, key=lambda part: -(part.times or 0.0))[:3]
    said = _joined([f"{(part.position or 0) + 1} ({times(part)})" for part in by_length])
    lines.append(f"For their length, most from {said}.")
    return lines


def _without(ranked: Sequence[Part]) -> list[str]:
    """What the answer could do without, where that was asked."""
    known = [part for part in ranked if part.loss is not None]
    if not known:
        return []
    known.sort(key=lambda part: -(part.loss or 0.0))
    needed = [part for part in known if (part.loss or 0.0) >= NEEDED][:3]
    if not needed:
        return ["No passage by itself is needed: without any one of them the same answer is about "
                "as likely."]  # fmt: skip
    said = [f"without {_of(part)} {factor(part.loss or 0.0)} times" for part in needed]
    return [f"Left out, the same answer would be less likely: {_joined(said)}."]


def factor(loss: float) -> str:
    """e to the loss, for people."""
    if loss > 13.8:
        return "over a million"
    value = math.exp(loss)
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def without(part: Part) -> str:
    """How likely the same answer is without a passage: ``÷2.3``, ``×1.2``."""
    if part.loss is None:
        return ""
    if abs(part.loss) > 13.8:
        return "÷10⁶+" if part.loss > 0 else "×10⁶+"
    return f"÷{factor(part.loss)}" if part.loss >= 0 else f"×{factor(-part.loss)}"


def _number(part: Part) -> str:
    return f"segment {(part.position or 0) + 1}"


def times(part: Part) -> str:
    """How many times what an even reader would read: ``×2.3``."""
    if part.times is None:
        return ""
    return f"×{part.times:.1f}" if part.times < 100 else f"×{part.times:,.0f}"


def meaning(data: Segments) -> list[str]:
    """What the numbers are, and what they are not."""
    reader = "it wrote the answer with" if data.answered else "of the passage that reads"
    if data.measure == "share":
        number = (
            "A share is how much of what attention brings to the reader comes from there: weight "
            f"× length of the value it hands over, all heads, mean of the positions {reader} and "
            f"of {layers_named(data.layers)}; all shares of a reader, those apart included, make "
            "100 %."
        )
    else:
        number = (
            f"A number is the attention weight, mean of all heads, of the positions {reader} and "
            f"of {layers_named(data.layers)} ({data.note}); all of a reader, those apart included, "
            "make 100 %."
        )
    lines = [
        number,
        "× is the share over that of an even reader, who reads all tokens that it sees alike: a "
        "long passage gets more by its length alone, × takes that out. What stands near the "
        "reader is read more in every text.",
        "It shows where the model looks, not what it could do without: leave a passage out and "
        f"ask again to know that ({'' if data.causal else '--model smollm2 '}--generate N "
        "--leave-out)."
        if data.losses is None
        else "Without: the model read the prompt once more without the passage; ÷8 says that the "
        "same answer, word for word, is then 8 times less likely. What two passages both say "
        "can be left out once without loss.",
    ]
    kinds = {apart.kind for apart in data.apart}
    if "first" in kinds:
        lines.append(
            "In a GPT the first token is a sink: heads with nothing to look for look there."
        )
    if "between" in kinds:
        lines.append("Between the segments stand blank lines, and the marks of a chat.")
    return lines


def short_meaning(data: Segments) -> list[str]:
    """What the numbers of a list are, in a line."""
    what = "what attention brought to the answer" if data.measure == "share" else "attention"
    between = any(apart.kind == "between" for apart in data.apart)
    return [
        f"share: of {what}, all heads, mean of {layers_named(data.layers)}; ×: over an even "
        f"reader's. {'Between the segments stand the marks of the chat. ' if between else ''}"
        "It shows where the model looked, not what mattered."
    ]


def heads_named(data: Segments) -> list[str]:
    """The heads by which the passage that is read most is read."""
    ranked = data.ranked()
    if not ranked or not ranked[0].heads or not ranked[0].heads[0].weight:
        return []
    found = ", ".join(
        f"layer {head.layer} head {head.head} ({percent(head.weight)})" for head in ranked[0].heads
    )
    return [f"Heads that look most at {_of(ranked[0])}, counted from 0: {found}."]


def _joined(said: Sequence[str]) -> str:
    return said[0] if len(said) == 1 else ", ".join(said[:-1]) + f" and {said[-1]}"
