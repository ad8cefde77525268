"""What the terminal and the picture both say: names, titles, remarks, and which words they show."""

from collections import Counter
from collections.abc import Iterator, Sequence

from jumok.lens.sources import Difference, Query, Source, Sources
from jumok.tokens import has_words, printable, shortened, visible

MOST_BARS = 10
MOST_SHADED_WORDS = 70
MOST_SIGNS = 200  # of one word in a sentence
SMALL_LEAD = 0.01  # one percentage point
UNKNOWN = ("[UNK]", "<unk>")

SHADES = ("#fff3d6", "#ffe0a3", "#ffc766", "#ffa726", "#f57c00")  # amber, light to deep


def shade(part: float) -> int | None:
    """Which of the shades stands for a share that is ``part`` (0 to 1) of the largest."""
    return None if part < 0.1 else min(int(part * len(SHADES)), len(SHADES) - 1)


def percent(share: float) -> str:
    """A fraction as a percentage with one digit: ``"39.6 %"``."""
    return f"{100 * share:.1f} %"


def points(change: float | None) -> str:
    """A difference of two fractions in percentage points: ``"+2.1"``."""
    return "" if change is None else f"{100 * change:+.1f}".replace("-", "−")


# -- names and titles ------------------------------------------------------------------------


def word_name(text: str) -> str:
    """A word as it may stand in a line: not too long, and nothing that steers a terminal."""
    text = shortened(text)
    return printable(text) if text.strip() == text and has_words(text) else visible(text)


def source_names(query: Query) -> dict[int, str]:
    """A name for each source, by position; a word that occurs again is numbered."""
    total = Counter(source.word for source in query.sources)
    count: Counter[str] = Counter()
    names = {}
    for source in query.sources:
        count[source.word] += 1
        name, repeated = word_name(source.word), total[source.word] > 1
        names[source.position] = f"{name} ({_ordinal(count[source.word])})" if repeated else name
    return names


def apart_name(source: Source, name: str) -> str:
    """How a source that is listed apart is called."""
    if source.kind == "itself":
        return "itself"
    return f"{name} (first token)" if source.kind == "first" else name


def query_name(query: Query) -> str:
    """``bank (2nd)``, numbered where the text has several; ``##berries (in strawberries)``."""
    name = source_names(query)[query.position]
    whole = query.tokens == query.sources[query.position].tokens
    return name if whole else f"{word_name(query.word)} (in {name})"


def query_title(query: Query) -> str:
    return f"Where {query_name(query)} takes its meaning from"


def pair_title(first: Query, second: Query) -> str:
    one, other = query_name(first), query_name(second)
    if one.casefold() == other.casefold():
        return f"Where {one} takes its meaning from in two texts"
    return f"Where {one} and, in the second text, {other} take their meaning from"


def read_by(data: Sources) -> str:
    return f"read by {printable(data.model) or 'the model'}, {layers_named(data.layers)}"


def layers_named(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]}–{layers[-1]}"
    return f"layers {', '.join(map(str, layers))}"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


# -- what is shown ---------------------------------------------------------------------------


def largest_share(query: Query) -> float:
    """Of the other plain words; the deepest shade stands for it."""
    return max((source.share for source in query.ranked()), default=0.0)


def longest_bar(query: Query, most: int = MOST_BARS) -> float:
    """The largest share that has a bar: of plain words and of what is listed apart."""
    shown = [*query.ranked()[:most], *query.apart()]
    return max((source.share for source in shown), default=0.0)


def plain_words(data: Sources) -> list[int]:
    """Positions of the words that a person sees."""
    words = enumerate(data.words)
    return [place for place, word in words if not word.special and has_words(word.text)]


def is_overview(data: Sources) -> bool:
    """Whether the queries are the text's words one after the other, not chosen ones."""
    return [query.position for query in data.queries] == plain_words(data)[: len(data.queries)]


def first_words(data: Sources) -> list[str]:
    """A line that says of how many words an overview shows the first, if not all."""
    shown, all_words = len(data.queries), len(plain_words(data))
    return [f"The first {shown:,} of {all_words:,} words."] if shown < all_words else []


def paired(left: Sources, right: Sources) -> list[tuple[Query, Query]]:
    """The queries of the same word in both texts; of unequal numbers of them, the last ones."""

    def by_word(data: Sources) -> dict[str, list[Query]]:
        found: dict[str, list[Query]] = {}
        for query in data.queries:
            found.setdefault(query.word.casefold(), []).append(query)
        return found

    pairs = []
    others = by_word(right)
    for word, queries in by_word(left).items():
        like = others.get(word, [])
        fewer = min(len(queries), len(like))
        if fewer:
            pairs += list(zip(queries[-fewer:], like[-fewer:], strict=True))
    return pairs or [(left.queries[-1], right.queries[-1])]  # 사과와 and 사과


def not_compared(left: Sources, right: Sources) -> list[str]:
    """A line for each text that names the queries without a partner in the other."""
    pairs = paired(left, right)
    lines = []
    for number, (which, data) in enumerate((("first", left), ("second", right))):
        inside = {pair[number].position for pair in pairs}
        names = [query_name(q) for q in data.queries if q.position not in inside]
        if names:
            some = listed(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            lines.append(f"Not compared, as the other text has fewer: {some} of the {which} text.")
    return lines


def shown_differences(rows: Sequence[Difference], most: int = 14) -> list[Difference]:
    """The rows that tell most: plain words by their larger share, then those apart."""

    def larger(row: Difference) -> float:
        return max(row.share or 0.0, row.against or 0.0)

    seen = [row for row in rows if row.share is not None or row.against is not None]
    plain = sorted((row for row in seen if row.kind == "word"), key=lambda row: -larger(row))
    return [*plain[:most], *(row for row in seen if row.kind != "word")]


def difference_name(row: Difference, first: Query, second: Query) -> str:
    """How a row of the table of both texts is called: as in the bars of the text that has it."""
    if row.kind == "itself":
        return "itself"
    if row.position is not None:
        return source_names(first)[row.position]
    assert row.against_position is not None
    return source_names(second)[row.against_position]


def excerpt(data: Sources, query: Query, most: int = MOST_SHADED_WORDS) -> range:
    """Positions of the words to show: all, or those around the query in a long text."""
    count = len(data.words)
    if count <= most:
        return range(count)
    start = min(max(query.position - most * 2 // 3, 0), count - most)
    return range(start, start + most)


def runs(data: Sources, query: Query) -> Iterator[tuple[str, Source | None]]:
    """The text as runs: words with their source, what stands between them without.

    Of pieces that only together make a character, the query counts, else the largest share.
    """
    shown = excerpt(data, query)
    begin = place = data.words[shown[0]].start if shown else 0
    found: list[tuple[int, int, Source]] = []
    for position in shown:
        word, source = data.words[position], query.sources[position]
        if word.special or word.start == word.end:
            continue
        if word.end > place:
            found.append((max(word.start, place), word.end, source))
            place = word.end
        elif found and found[-1][2].kind != "itself":
            start, end, other = found[-1]
            if source.kind == "itself" or source.share > other.share:
                found[-1] = (start, end, source)

    if shown and shown[0] > 0:
        yield "… ", None
    for start, end, source in found:
        yield _shown(data.text[begin:start]), None
        yield _shown(data.text[start:end]), source
        begin = end
    finished = bool(shown) and shown[-1] == len(data.words) - 1
    yield (_shown(data.text[begin:]) if finished or not shown else " …"), None


def _shown(text: str) -> str:
    return printable(shortened(text, MOST_SIGNS))


# -- what a reader must know -----------------------------------------------------------------


def remarks(data: Sources, query: Query) -> list[str]:
    """What a reader must know before reading too much into these bars."""
    lines = []
    names = source_names(query)
    ranked = query.ranked()
    lead = query.lead()
    if lead is not None and lead < SMALL_LEAD:
        close = [s for s in ranked[1:4] if ranked[0].share - s.share < SMALL_LEAD]
        others = listed([names[source.position] for source in close])
        lines.append(
            f"“{names[ranked[0].position]}” leads {others} by less than a point: "
            "read them as equal."
        )
    if data.causal:
        later = [s for s in query.unseen() if s.kind == "word" and _is_word(s.word)]
        if later:
            some = listed([names[source.position] for source in later[:3]])
            more = ", …" if len(later) > 3 else ""
            lines.append(
                f"“{word_name(query.word)}” cannot see {some}{more} in a GPT; try --model minilm."
            )
    return lines


def meaning(data: Sources, other: Sources | None = None) -> list[str]:
    """One line on what the number is, one on what it is not, and what else to know."""
    layers = layers_named(data.layers)
    if data.measure == "share":
        number = (
            "A share is how much of what attention brings to the word comes from there: weight × "
            f"length of the value it hands over, all heads, mean of {layers}; all shares, "
            "itself and those apart included, make 100 %."
        )
    else:
        number = (
            f"A number is the attention weight, mean of all heads and {layers} "
            f"({data.note}); all of them, itself and those apart included, make 100 %."
        )
    lines = [number, "It shows where the model looks; by itself it doesn't explain what it does."]
    if data.causal:
        lines.append(
            "In a GPT the first token is a sink: heads with nothing to look for look there."
        )
    unknown = [
        word.text
        for text in (data, other)
        if text is not None
        for word in text.words
        if any(text.tokens[token] in UNKNOWN for token in word.tokens) and word.text not in UNKNOWN
    ]
    if unknown:
        names = [word_name(name) for name in dict.fromkeys(unknown)]
        some = listed(names[:5]) + (", …" if len(names) > 5 else "")
        lines.append(f"Not in this model's vocabulary, so it read a blank: {some}.")
    return lines


def listed(names: Sequence[str]) -> str:
    """``“a”, “b” and “c”``."""
    quoted = [f"“{name}”" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" and {quoted[-1]}"


def _is_word(text: str) -> bool:
    return any(sign.isalnum() for sign in text)
