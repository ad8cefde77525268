"""Where the passages of a text begin and end: paragraphs, lines, turns of a chat, or as named.

Places are characters, the end exclusive. What stands between passages (blank lines, the marks
of a chat template) belongs to none of them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jumok.tokens.signs import shortened

__all__ = ["MODES", "Passage", "cut", "read_passages", "turns"]

MODES = ("paragraphs", "lines", "chat")
_LINE = re.compile(r"[^\r\n]+")
_BLANK_LINE = re.compile(r"(?>\r\n|\r|\n)[^\S\r\n]*(?=[\r\n])")
_NAME = 32  # signs of a passage's beginning that name it


@dataclass(frozen=True)
class Passage:
    """One passage of a text.

    Attributes:
        name: its beginning, a role, or the name that it was given.
        start: where it begins in the text (characters).
        end: where it ends, exclusive.
    """

    name: str
    start: int
    end: int


def cut(text: str, how: str, inside: Sequence[Passage] | None = None) -> list[Passage]:
    """The passages of ``text``.

    Args:
        text: the text as the model reads it.
        how: "paragraphs" (between blank lines), "lines" or "chat" (the turns of a chat
            template). Blank ones are none.
        inside: the turns of the text, if they are known; otherwise they are found by the marks
            of the usual templates. In a chat, paragraphs and lines are those of its turns.

    Raises:
        ValueError: an unknown mode, no such passage, or a chat without marks.
    """
    if how not in MODES:
        raise ValueError(f"segments {how!r}: choose {', '.join(MODES)}")
    found = turns(text) if inside is None else list(inside)
    if how == "chat":
        if not found:
            raise ValueError(
                "no turn of a chat was found: the text has no marks such as <|im_start|> and is no "
                'JSON list of {"role": …, "content": …}; try paragraphs'
            )
        return found
    pieces = _paragraphs if how == "paragraphs" else _lines
    whole = found or [Passage("", 0, len(text))]
    places = [place for part in whole for place in pieces(text, part.start, part.end)]
    if not places:
        raise ValueError(f"the text has no {how}: it is empty")
    return [Passage(beginning(text[start:end]), start, end) for start, end in places]


def beginning(text: str, most: int = _NAME) -> str:
    """The first words of ``text`` in one line."""
    words = text.split()
    name = ""
    for word in words:
        longer = f"{name} {word}" if name else word
        if len(longer) > most:
            return f"{name or shortened(word, most - 1)}…"
        name = longer
    return name


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for found in _LINE.finditer(text, start, end):
        if found.group().strip():
            yield _stripped(text, *found.span())


def _paragraphs(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    before: tuple[int, int] | None = None
    for line in _lines(text, start, end):
        if before is None:
            before = line
        elif _BLANK_LINE.search(text, before[1], line[0]) is None:
            before = (before[0], line[1])
        else:
            yield before
            before = line
    if before is not None:
        yield before


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


# -- turns of a chat -------------------------------------------------------------------------

_ROLES = "system|user|assistant|tool|observation"
_TEMPLATES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # ChatML
        r"<\|im_start\|>(?P<role>[^\n<]*)\n(?P<content>.*?)(?=<\|im_(?:end|start)\|>|\Z)",
        # Llama 3
        r"<\|start_header_id\|>(?P<role>[^<]*)<\|end_header_id\|>(?P<content>.*?)"
        r"(?=<\|(?:eot_id|eom_id|end_of_text|start_header_id)\|>|\Z)",
        # Gemma
        r"<start_of_turn>(?P<role>[^\n<]*)\n(?P<content>.*?)(?=<(?:end|start)_of_turn>|\Z)",
        # Harmony
        r"<\|start\|>(?P<role>[^<]*)(?:<\|channel\|>[^<]*)?<\|message\|>(?P<content>.*?)"
        r"(?=<\|(?:end|return|call|start)\|>|\Z)",
        # Granite
        r"<\|start_of_role\|>(?P<role>[^<]*)<\|end_of_role\|>(?P<content>.*?)"
        r"(?=<\|(?:end_of_text|start_of_role)\|>|\Z)",
        # Phi 3, Zephyr, GLM
        rf"<\|(?P<role>{_ROLES})\|>(?P<content>.*?)"
        rf"(?=<\|(?:end|endoftext|{_ROLES})\|>|</s>|\Z)",
        # DeepSeek
        r"<｜(?P<role>User|Assistant)｜>(?P<content>.*?)(?=<｜|\Z)",
        # Llama 2, Mistral
        r"(?:<<SYS>>|\[SYSTEM_PROMPT\])(?P<system>.*?)(?=<</SYS>>|\[/SYSTEM_PROMPT\])"
        r"|(?:\[INST\]|<</SYS>>)(?!\s*<<SYS>>)(?P<user>.*?)(?=\[/INST\]|\Z)"
        r"|\[/INST\](?P<assistant>.*?)(?=</s>|<s>|\[INST\]|\Z)",
    )
)


def turns(text: str) -> list[Passage]:
    """The turns of a chat, found by the marks of the usual templates; empty if there are none.

    An empty turn at the end, which asks the model for its answer, is none.
    """
    for template in _TEMPLATES:
        found = []
        for match in template.finditer(text):
            kind = "content" if "content" in template.groupindex else match.lastgroup or ""
            role = match.group("role").strip() if kind == "content" else kind
            found.append(Passage(role.lower(), *_stripped(text, *match.span(kind))))
        if found and found[-1].start >= found[-1].end:
            found.pop()
        if found:
            return numbered(found)
    return []


def numbered(passages: Sequence[Passage]) -> list[Passage]:
    """With numbers where the same name occurs again: user 1, user 2."""
    names = [passage.name for passage in passages]
    count: dict[str, int] = {}
    found = []
    for passage in passages:
        count[passage.name] = count.get(passage.name, 0) + 1
        again = names.count(passage.name) > 1
        name = f"{passage.name} {count[passage.name]}" if again else passage.name
        found.append(Passage(name, passage.start, passage.end))
    return found


# -- as named --------------------------------------------------------------------------------


def read_passages(described: Any, text: str) -> list[Passage]:
    """Passages that somebody describes, in the order of the text.

    Args:
        described: texts, each found after the one before it; or pairs (name, text); or a
            mapping of names to texts; or objects with "text" or "start" and "end" (characters)
            and, if wanted, "name"; or passages.
        text: the text as the model reads it.

    Raises:
        ValueError: a passage that isn't in the text, or overlaps another.
        TypeError: something that describes no passage.
    """
    if isinstance(described, Mapping):
        described = described.items()
    if isinstance(described, str) or not isinstance(described, Iterable):
        raise TypeError(f"segments {described!r}: give {', '.join(MODES)}, or a list of texts")
    found: list[Passage] = []
    place = 0
    for number, entry in enumerate(described, 1):
        name, start, end = _located(entry, number, text, place)
        if not 0 <= start <= end <= len(text):
            raise ValueError(
                f"segment {number} ({name!r}) goes from {start} to {end}, but the text has "
                f"{len(text):,} characters"
            )
        if start < place:
            raise ValueError(
                f"segment {number} ({name!r}) begins at {start}, before the end of the one before "
                f"it at {place}; segments are in the order of the text and don't overlap"
            )
        found.append(Passage(name or beginning(text[start:end]), start, end))
        place = end
    if not found:
        raise ValueError("no segment is named")
    return found


def _located(entry: Any, number: int, text: str, after: int) -> tuple[str, int, int]:
    if isinstance(entry, Passage):
        return entry.name, entry.start, entry.end
    wanted: Any = entry
    name: Any = ""
    if isinstance(entry, Mapping):
        name, wanted = entry.get("name", ""), entry.get("text")
        start, end = entry.get("start"), entry.get("end")
        if wanted is None and isinstance(start, int) and isinstance(end, int):
            return str(name), start, end
    elif isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2:
        name, wanted = entry
    if not isinstance(wanted, str):
        raise TypeError(
            f"segment {number} is {shortened(repr(entry), 60)}: give its text, or an object with "
            '"name" and "text", or with "name", "start" and "end" in characters'
        )
    place = text.find(wanted, after)
    if place < 0:
        where = " after the segment before it" if wanted in text else ""
        raise ValueError(
            f"segment {number} ({shortened(str(name) or wanted)!r}) isn't in the text{where}; "
            "segments are in the order of the text, with its spaces and line ends"
        )
    return str(name), place, place + len(wanted)


def read_description(content: str) -> Any:
    """What a file says about segments, for `read_passages`: JSON, or lines ``NAME: TEXT``.

    Raises:
        ValueError: neither of them.
    """
    if content.lstrip().startswith(("[", "{")):
        try:
            return json.loads(content)
        except ValueError as error:
            raise ValueError(f"it is no JSON: {error}") from error
    pairs = []
    for number, line in enumerate(content.splitlines(), 1):
        name, colon, words = line.partition(":")
        if line.strip() and not (colon and name.strip() and words.strip()):
            raise ValueError(
                f"line {number} is {shortened(line, 60)!r}: write NAME: HOW ITS TEXT BEGINS, "
                "or the whole file as JSON"
            )
        if line.strip():
            pairs.append((name.strip(), words.strip()))
    return Beginnings(tuple(pairs))


@dataclass(frozen=True)
class Beginnings:
    """Names of segments and how the text of each begins; it ends where the next begins."""

    pairs: tuple[tuple[str, str], ...]

    def passages(self, text: str) -> list[Passage]:
        """Where they are in ``text``."""
        starts = read_passages(self.pairs, text)
        ends = [*(passage.start for passage in starts[1:]), len(text)]
        return [
            Passage(passage.name, *_stripped(text, passage.start, end))
            for passage, end in zip(starts, ends, strict=True)
        ]
