"""Where a word takes its meaning from.

For query token i the share of key token j is, in each layer,

    share_ij = Σ_heads w_ij · ‖v_j W_O^(head)‖ / Σ_j' Σ_heads w_ij' · ‖v_j' W_O^(head)‖

(Kobayashi et al. 2020, "Attention is not only a weight"), then the mean over the layers: how
much of what attention brings to i comes from j, by the length of the vectors that are mixed.
The raw share is the mean of w_ij over heads and layers. Columns of a word's tokens are added,
rows averaged. Everything here is NumPy on chosen rows: no T × T array is built.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jumok.lens.selection import recorded_ids, self_attention
from jumok.lens.value_notes import norms_to_weigh_with
from jumok.tokens import Reading, Word, as_tokenizer, has_words, printable, read, shortened

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap
    from jumok.lens.recording import Recording

__all__ = ["Difference", "Head", "Query", "Source", "Sources", "difference", "sources"]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Kind = Literal["word", "itself", "first", "special"]

MOST_QUERIES = 200  # without a chosen word, so many words are queries
MOST_PAIRS = 200_000  # of a query and a source; then fewer are
ROWS_AT_ONCE = 64
SMALL_GAP = 16  # rows
TOP_HEADS = 3


@dataclass(frozen=True)
class Head:
    """An attention head and the weight it gives; layer and head count from 0."""

    layer: int
    head: int
    weight: float


@dataclass(frozen=True)
class Source:
    """One word as a source for the query word.

    Attributes:
        word: plain text; for a special token its name.
        position: its place among the words, from 0.
        tokens: positions of its tokens.
        share: fraction (0 to 1) of all keys; what `Sources.measure` says.
        raw: mean attention weight over heads and layers, 0 to 1.
        kind: "word"; "itself" for the query word; "first" for the word that holds the first
            token; "special" for tokens that the tokenizer added.
        seen: whether the model lets the query see it at all.
        heads: the heads that look most at it from the query word, strongest first.
    """

    word: str
    position: int
    tokens: tuple[int, ...]
    share: float
    raw: float
    kind: Kind
    seen: bool
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class Query:
    """One word that takes, and all its sources in the order of the text.

    Attributes:
        word: plain text; of a chosen token its label.
        position: its place among the words, from 0; of a token, that of its word.
        tokens: positions of the tokens whose rows were averaged.
        sources: one for every word of the text, itself and special tokens included.
    """

    word: str
    position: int
    tokens: tuple[int, ...]
    sources: tuple[Source, ...]

    def ranked(self) -> list[Source]:
        """The other plain words that it can see, largest share first."""
        others = [source for source in self.sources if source.kind == "word" and source.seen]
        return sorted(others, key=lambda source: -source.share)

    def apart(self) -> list[Source]:
        """What is listed apart: the word itself, the first token, special tokens."""
        order = ("itself", "first", "special")
        others = [source for source in self.sources if source.kind != "word" and source.seen]
        return sorted(others, key=lambda source: order.index(source.kind))

    def lead(self) -> float | None:
        """How far the largest share lies above the next; None with fewer than two words."""
        shares = [source.share for source in self.ranked()[:2]]
        return shares[0] - shares[1] if len(shares) == 2 else None

    def unseen(self) -> list[Source]:
        """The words that the model hides from this one: in a GPT, all that come later."""
        return [source for source in self.sources if not source.seen]


@dataclass(frozen=True)
class Sources:
    """Where words take their meaning from; what `jumok look` shows.

    Attributes:
        model: the model's name.
        text: the text as read by the tokenizer.
        tokens: a readable label for each token.
        words: the words in the order of the text.
        layers: indices of the layers that were averaged, from 0.
        causal: whether words see only what stands to their left.
        measure: "share" (weights times the length of what is handed over) or "raw" (weights).
        note: why `measure` is what it is.
        queries: the chosen words.
    """

    model: str
    text: str
    tokens: tuple[str, ...]
    words: tuple[Word, ...]
    layers: tuple[int, ...]
    causal: bool
    measure: Literal["share", "raw"]
    note: str
    queries: tuple[Query, ...]

    def to_dict(self) -> dict[str, Any]:
        """The object that `jumok look --json` prints: strings, numbers, lists, dicts only."""
        return {
            "model": self.model,
            "text": self.text,
            "tokens": list(self.tokens),
            "words": [word.text for word in self.words],
            "layers": list(self.layers),
            "causal": self.causal,
            "measure": self.measure,
            "note": self.note,
            "queries": [_plain(asdict(query)) for query in self.queries],
        }


@dataclass(frozen=True)
class Difference:
    """One source word in two texts.

    Attributes:
        word: plain text.
        kind: as of a `Source`.
        share: in the first text; None where the word isn't there or isn't seen.
        against: in the second text, likewise.
        position: its place among the words of the first text; None where it isn't there.
        against_position: its place among those of the second.
    """

    word: str
    kind: Kind
    share: float | None
    against: float | None
    position: int | None
    against_position: int | None

    @property
    def change(self) -> float | None:
        """``against − share``: positive where the second text gives more."""
        if self.share is None or self.against is None:
            return None
        return self.against - self.share


def sources(
    recording: "Recording",
    tokenizer: Any,
    word: str | None = None,
    *,
    token: int | None = None,
    text: str | None = None,
    layers: int | Iterable[int] | None = None,
    batch: int = 0,
    raw: bool = False,
    pieces: bool = False,
) -> Sources:
    """Which words each chosen word draws on, in a recorded forward pass.

    Args:
        recording: of a model that read one text: self-attention maps (B, H, T, T).
        tokenizer: the model's; ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
        word: the word to look at; every occurrence is a query. Without a capital letter it
            finds every spelling: *bank* finds *Bank* too, *Bank* only itself. Without a word,
            every word is a query; of a long text the first 200, or as many as make 200,000
            pairs of words.
        token: instead of ``word``, the position of one token, negative from the end.
        text: the text that the model read; without it, it is rebuilt from the token ids.
        layers: which layers to average, from 0; all of them by default.
        batch: which text of the batch.
        raw: show plain attention weights instead of norm-weighted shares.
        pieces: show tokens instead of words; each token of ``word`` is a query.

    Raises:
        ValueError: the word, token, layer or text is not in the recording.
        TypeError: ``layers`` are no whole numbers.

    Example:
        >>> jumok.sources(recording, tokenizer, word="bank").queries[-1].ranked()[0].word
        'deposited'
    """
    if word is not None and token is not None:
        raise ValueError(f"choose a word ({word!r}) or a token ({token}), not both")
    tokenizer = as_tokenizer(tokenizer)
    ids = recorded_ids(recording, tokenizer, text, batch)
    reading = read(tokenizer, ids, text)
    maps = self_attention(recording, layers, len(ids))
    shown = _pieces(reading) if pieces else list(reading.words)
    chosen = _choose(reading, shown, word, token)

    norms, note = norms_to_weigh_with([attention for _, attention in maps], raw)

    measured = measured_words(maps, norms, [query.tokens for query in chosen], shown, batch)
    causal = all(attention.is_causal for _, attention in maps)
    queries = []
    for number, query in enumerate(chosen):
        itself = query.position
        seen = measured.weights[number, :, 0] > 0
        real = (place for place, word in enumerate(shown) if not word.special or seen[place])
        first = next(real, 0)  # after padding on the left
        queries.append(
            Query(
                query.text,
                itself,
                query.tokens,
                tuple(
                    Source(
                        word=source.text,
                        position=place,
                        tokens=source.tokens,
                        share=float(measured.share[number, place]),
                        raw=float(measured.raw[number, place]),
                        kind="itself" if place == itself else _kind(source, place == first),
                        seen=bool(seen[place]),
                        heads=measured.top_heads(number, place),
                    )
                    for place, source in enumerate(shown)
                ),
            )
        )
    return Sources(
        model=recording.model_name,
        text=reading.text,
        tokens=reading.labels,
        words=tuple(shown),
        layers=tuple(layer for layer, _ in maps),
        causal=causal,
        measure="raw" if norms is None else "share",
        note=note,
        queries=tuple(queries),
    )


def difference(first: Query, second: Query) -> list[Difference]:
    """The sources of the same word in two texts, side by side.

    Words are matched by their text (upper and lower case alike) and by which occurrence it is;
    the query words are matched with each other. First the words of the first text, in order,
    then those that only the second has.
    """
    left, right = dict(_named(first)), dict(_named(second))
    rows = []
    for name in [*left, *(name for name in right if name not in left)]:
        a, b = left.get(name), right.get(name)
        known = a or b
        assert known is not None
        rows.append(
            Difference(
                known.word,
                known.kind,
                a.share if a is not None and a.seen else None,
                b.share if b is not None and b.seen else None,
                None if a is None else a.position,
                None if b is None else b.position,
            )
        )
    return rows


def _named(query: Query) -> Iterator[tuple[tuple[str, int], Source]]:
    count: Counter[str] = Counter()
    for source in query.sources:
        if source.kind == "itself":
            yield ("", 0), source
        else:
            name = _folded(source.word)
            count[name] += 1
            yield (name, count[name]), source


@dataclass(frozen=True)
class _Chosen:
    text: str
    position: int
    tokens: tuple[int, ...]


def _choose(
    reading: Reading, shown: Sequence[Word], word: str | None, token: int | None
) -> list[_Chosen]:
    """The query words: all, or those that match."""
    place_of = {token: place for place, other in enumerate(shown) for token in other.tokens}
    if token is not None:
        size = len(reading.labels)
        if not -size <= token < size:
            raise ValueError(f"there is no token {token}: the text has tokens 0 to {size - 1}")
        token %= size
        return [_Chosen(reading.labels[token], place_of[token], (token,))]
    if word is not None:
        words = _matching(reading.words, word)
        if not words:
            raise ValueError(
                f"the text has no word {shortened(word)!r}; its words: {_listed(reading.words)}"
            )
        wanted = {token for other in words for token in other.tokens}
        found = [other for other in shown if not wanted.isdisjoint(other.tokens)]
    else:
        found = [other for other in shown if not other.special and has_words(other.text)]
        found = found[: max(1, min(MOST_QUERIES, MOST_PAIRS // max(len(shown), 1)))]
    return [_Chosen(other.text, place_of[other.tokens[-1]], other.tokens) for other in found]


def _matching(words: Sequence[Word], word: str) -> list[Word]:
    """Words that equal ``word``; else without regard to case; else by their letters alone.

    Without a capital letter, case never counts. A Korean word may also be followed by its
    particle: 사과 finds 사과와.
    """
    wanted = word.strip()
    any_case = _exact(wanted) == _exact(wanted).lower()
    for same in (_folded, _letters) if any_case else (_exact, _folded, _letters):
        found = [other for other in words if same(other.text) == same(wanted) != ""]
        if found:
            return found
    if any("가" <= sign <= "힣" for sign in wanted):
        return [other for other in words if _exact(other.text).startswith(_exact(wanted))]
    return []


def _exact(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _folded(text: str) -> str:
    return _exact(text).casefold()


def _letters(text: str) -> str:
    return "".join(sign for sign in _folded(text) if sign.isalnum())


def _listed(words: Sequence[Word], most: int = 12) -> str:
    plain = [word.text for word in words if not word.special and has_words(word.text)]
    names = [printable(shortened(name)) for name in dict.fromkeys(plain)]
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _pieces(reading: Reading) -> list[Word]:
    """Each token as a word of its own."""
    owner = {token: word for word in reading.words for token in word.tokens}
    return [
        Word(label, start, end, (token,), owner[token].special)
        for token, (label, (start, end)) in enumerate(
            zip(reading.labels, reading.spans, strict=True)
        )
    ]


@dataclass(frozen=True)
class Measured:
    """For Q queries and W words: shares and raw weights (Q, W), the best heads (Q, W, 3)."""

    share: Floats
    raw: Floats
    weights: Floats
    heads: np.ndarray[Any, np.dtype[np.int64]]
    names: list[tuple[int, int]]

    def top_heads(self, query: int, word: int) -> tuple[Head, ...]:
        found = zip(self.heads[query, word], self.weights[query, word], strict=True)
        return tuple(
            Head(layer=self.names[head][0], head=self.names[head][1], weight=float(weight))
            for head, weight in found
            if weight > 0
        )


def measured_words(
    maps: Sequence[tuple[int, "AttentionMap"]],
    norms: Sequence[Any] | None,
    queries: Sequence[tuple[int, ...]],
    shown: Sequence[Word],
    batch: int = 0,
) -> Measured:
    """One pass over the chosen rows of every layer.

    Args:
        maps: the layers, each with its index.
        norms: of the values of each layer, or `None` for plain weights.
        queries: of each query the rows that are averaged.
        shown: words that together have every key once.
        batch: which text of the batch.
    """
    order = np.array([token for word in shown for token in word.tokens])
    starts = np.cumsum([0, *(len(word.tokens) for word in shown[:-1])])

    def by_word(tokens: Floats) -> Floats:  # (…, T) → (…, W): columns of a word are added
        summed: Floats = np.add.reduceat(tokens[..., order], starts, axis=-1)
        return summed

    rows_needed = sorted({token for tokens in queries for token in tokens})
    share = np.zeros((len(queries), len(shown)))
    raw = np.zeros_like(share)
    weights = np.zeros((*share.shape, TOP_HEADS))
    best = np.zeros(weights.shape, np.int64)
    names: list[tuple[int, int]] = []
    for number, (layer, attention) in enumerate(maps):
        heads = attention.shape[1]
        looks = np.zeros((*share.shape, heads))  # (Q, W, H)
        norm = None if norms is None else _numpy(norms[number][batch])[:, None, :]  # (H, 1, T)
        for block in _blocks(rows_needed):
            rows = _numpy(attention[batch, :, block.start : block.stop])  # (H, rows, T)
            words = by_word(rows)  # (H, rows, W)
            if norm is None:
                shares = words.mean(0)
            else:
                brought = (rows * norm).sum(0)  # (rows, T)
                total = brought.sum(-1, keepdims=True)
                shares = by_word(brought / np.where(total > 0, total, 1.0))
            for place, tokens in enumerate(queries):
                inside = [token - block.start for token in tokens if token in block]
                if inside:
                    part = 1.0 / len(tokens)  # rows are averaged
                    share[place] += part * shares[inside].sum(0) / len(maps)
                    raw[place] += part * words[:, inside].sum(1).mean(0) / len(maps)
                    looks[place] += part * words[:, inside].sum(1).T
        # The best heads so far compete with this layer's.
        numbers = np.arange(len(names), len(names) + heads)
        names += [(layer, head) for head in attention.heads]
        weights = np.concatenate([weights, looks], axis=-1)
        best = np.concatenate([best, np.broadcast_to(numbers, looks.shape)], axis=-1)
        first = np.argsort(-weights, axis=-1, kind="stable")[..., :TOP_HEADS]
        weights = np.take_along_axis(weights, first, axis=-1)
        best = np.take_along_axis(best, first, axis=-1)
    return Measured(share, raw, weights, best, names)


def _blocks(rows: Sequence[int]) -> Iterator[range]:
    """Ranges that hold the rows, a few at a time; small gaps cost less than another call."""
    start = 0
    for place in range(1, len(rows) + 1):
        ends = place == len(rows) or rows[place] - rows[place - 1] > SMALL_GAP
        if ends or rows[place] - rows[start] >= ROWS_AT_ONCE:
            yield range(rows[start], rows[place - 1] + 1)
            start = place


def _numpy(array: Any) -> Floats:
    """Any array library's values in float64."""
    on_host = array.cpu() if hasattr(array, "cpu") else array
    return np.asarray(on_host).astype(np.float64)


def _kind(word: Word, first: bool) -> Kind:
    if word.special:
        return "special"
    return "first" if first else "word"


def _plain(value: Any) -> Any:
    """Tuples as lists, for JSON."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value
