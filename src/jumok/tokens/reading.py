"""The words that a person sees, and the tokens that belong to each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jumok.tokens.signs import extends, is_flag, is_letter, is_visible
from jumok.tokens.tokenizer import as_tokenizer

__all__ = ["Reading", "Word", "read", "words"]


@dataclass(frozen=True)
class Word:
    """One word as a person sees it, and the tokens that belong to it.

    Attributes:
        text: the word as the text has it; for a special token its name, e.g. ``[CLS]``.
        start: where it begins in the text (characters).
        end: where it ends in the text, exclusive.
        tokens: positions of its tokens in the ids.
        special: whether it is a special token, which no reader sees.
    """

    text: str
    start: int
    end: int
    tokens: tuple[int, ...]
    special: bool = False


@dataclass(frozen=True)
class Reading:
    """What a tokenizer's ids say: the text, a label for each token, and the words.

    Attributes:
        text: the text.
        labels: a readable name for each token.
        words: the words, in the order of the text.
        spans: where each token begins and ends in the text (characters, end exclusive); tokens
            that only together make a character have the same span.
    """

    text: str
    labels: tuple[str, ...]
    words: tuple[Word, ...]
    spans: tuple[tuple[int, int], ...]


def words(tokenizer: Any, ids: Iterable[int], text: str | None = None) -> list[Word]:
    """The words that ``ids`` spell, in the order of the text.

    A word is a run of letters and digits with inner apostrophes, or one other visible sign.
    A token belongs to the word of its first visible character; a token of spaces only is a
    word of its own, and so is a special token. A sign that has no token of its own joins the
    word whose token covers it.

    Args:
        tokenizer: ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
        ids: token ids.
        text: the text they were made from. Without it, the text is rebuilt from the ids.

    Raises:
        ValueError: ``text`` has other ids.
    """
    return list(read(tokenizer, ids, text).words)


def read(tokenizer: Any, ids: Iterable[int], text: str | None = None) -> Reading:
    """Text, labels and words of ``ids``; see `words`."""
    tokenizer = as_tokenizer(tokenizer)
    ids = [int(id) for id in ids]
    text, spans = tokenizer.located(ids, text)
    labels = tuple(tokenizer.labels(ids))
    places = tuple((start, end) for start, end, _ in spans)
    return Reading(text, labels, tuple(_group(text, spans, labels)), places)


def _group(text: str, spans: list[tuple[int, int, bool]], labels: Sequence[str]) -> Iterator[Word]:
    """Join tokens to words, in the order of the tokens' words in the text."""
    pieces = list(_split_words(text))
    word_at = {place: number for number, (a, b) in enumerate(pieces) for place in range(a, b)}
    owner: list[int | None] = []
    for start, end, special in spans:
        seen = (word_at[place] for place in range(start, end) if place in word_at)
        owner.append(None if special else next(seen, None))
    owned: dict[int, list[int]] = {}
    for token, number in enumerate(owner):
        if number is not None:
            owned.setdefault(number, []).append(token)
    for token, (start, end, special) in enumerate(spans):
        number = owner[token]
        if number is None:
            shown = text[start:end] if end > start and not special else labels[token]
            yield Word(shown, start, end, (token,), special)
        elif token == owned[number][0]:
            tokens = tuple(owned[number])
            first, last = pieces[number]
            reach = max(spans[place][1] for place in tokens)
            following = number + 1
            while following < len(pieces) and following not in owned:
                if pieces[following][0] >= reach:
                    break
                last = pieces[following][1]
                following += 1
            yield Word(text[first:last], first, last, tokens)


def _split_words(text: str) -> Iterator[tuple[int, int]]:
    """Where words begin and end: runs of letters and digits, or one other visible sign."""
    place, size = 0, len(text)
    while place < size:
        if not is_visible(text[place]):
            place += 1
            continue
        end = place + 1
        if is_letter(text[place]):
            while end < size:
                inner = text[end] in "'’" and end + 1 < size and is_letter(text[end + 1])
                if not (inner or is_letter(text[end]) or extends(text[end])):
                    break
                end += 1
        else:
            flag = is_flag(text[place])
            while end < size:
                joined = text[end - 1] == "\u200d" and is_visible(text[end])
                pair = flag and end == place + 1 and is_flag(text[end])
                if not (extends(text[end]) or joined or pair):
                    break
                end += 1
        yield place, end
        place = end
