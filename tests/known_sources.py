"""Sources written by hand, for tests of what is shown."""

from __future__ import annotations

from dataclasses import replace

from jumok.lens.sources import Head, Kind, Query, Source, Sources
from jumok.tokens import Word


def made(
    text: str,
    query: int,
    shares: list[float],
    *,
    causal: bool = False,
    special: bool = True,
) -> Sources:
    """The text's words, cut at spaces, between [CLS] and [SEP]; a share for each."""
    words, place = [], 0
    names = text.split(" ")
    for name in names:
        start = text.index(name, place)
        place = start + len(name)
        words.append((name, start, place))
    if special:
        words = [("[CLS]", 0, 0), *words, ("[SEP]", len(text), len(text))]
    assert len(words) == len(shares)

    def kind(number: int) -> Kind:
        if number == query:
            return "itself"
        if words[number][0] in ("[CLS]", "[SEP]"):
            return "special"
        return "first" if number == 0 else "word"

    found = tuple(
        Source(
            word=name,
            position=number,
            tokens=(number,),
            share=share,
            raw=share / 2,
            kind=kind(number),
            seen=not causal or number <= query,
            heads=(Head(2, 11, 0.5), Head(0, 3, 0.25)),
        )
        for number, ((name, _, _), share) in enumerate(zip(words, shares, strict=True))
    )
    return Sources(
        model="toy",
        text=text,
        tokens=tuple(name for name, _, _ in words),
        words=tuple(
            Word(name, start, end, (number,), start == end)
            for number, (name, start, end) in enumerate(words)
        ),
        layers=(0, 1, 2),
        causal=causal,
        measure="share",
        note="weights times lengths",
        queries=(Query(words[query][0], query, (query,), found),),
    )


def every_word(data: Sources) -> Sources:
    """The same shares for each plain word as a query."""
    (query,) = data.queries
    queries = []
    for place, word in enumerate(data.words):
        if not word.special:
            kinds: list[Kind] = ["special" if other.special else "word" for other in data.words]
            kinds[place] = "itself"
            changed = tuple(replace(s, kind=k) for s, k in zip(query.sources, kinds, strict=True))
            queries.append(Query(word.text, place, (place,), changed))
    return replace(data, queries=tuple(queries))


PHONE = made("apple phone", 1, [0.125, 0.242, 0.396, 0.237])
ORANGE = made("an apple and orange", 2, [0.116, 0.179, 0.246, 0.175, 0.181, 0.103])
KOREAN = made("나는 사과와 오렌지를 먹었다", 2, [0.06, 0.2, 0.4, 0.24, 0.06, 0.04])
GPT = made("The bank was here", 1, [0.7, 0.3, 0.0, 0.0], causal=True, special=False)
