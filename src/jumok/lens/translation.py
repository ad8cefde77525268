"""What an encoder-decoder reads: the words of the source for each word of the target.

The cross-attention of the decoder gives the shares, by the formula of `jumok.lens.sources`; a
target word's readers are the positions that wrote it, each one before its token. Within the
source, the encoder's self-attention says where each word takes its meaning from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jumok.lens.recording import Recording
from jumok.lens.sources import Query, Source, Sources, measured_words, sources
from jumok.lens.value_notes import norms_to_weigh_with
from jumok.tokens import as_tokenizer, has_words, read

if TYPE_CHECKING:
    from jumok.lens.attention_map import AttentionMap

__all__ = ["Translation", "translation"]


@dataclass(frozen=True)
class Translation:
    """A source, a target, and who read what.

    Attributes:
        target: the target's text.
        target_tokens: a readable label for each of its tokens, the first one's id left out.
        reads: for each word of the target the words of the source: its queries are the target's
            words (`Query.position` counts them, `Query.tokens` are positions in the target), all
            else is the source's. Layers count the decoder's cross-attention.
        within: where each word of the source takes its meaning from. Layers count the encoder's.
    """

    target: str
    target_tokens: tuple[str, ...]
    reads: Sources
    within: Sources

    def to_dict(self) -> dict[str, Any]:
        """The object that `jumok look --json` prints for an encoder-decoder: plain values only."""
        return {
            "model": self.reads.model,
            "text": self.reads.text,
            "target": self.target,
            "target_tokens": list(self.target_tokens),
            "target_words": [query.word for query in self.reads.queries],
            "reads": self.reads.to_dict(),
            "within": self.within.to_dict(),
        }


def translation(
    recording: Recording,
    tokenizer: Any,
    source_ids: Sequence[int],
    target_ids: Sequence[int],
    *,
    text: str | None = None,
    layers: Iterable[int] | None = None,
    raw: bool = False,
) -> Translation:
    """Which words of the source each word of the target read, in a recorded forward.

    Args:
        recording: of an encoder-decoder that was given both, ``model(source, target)``.
        tokenizer: the model's; ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
        source_ids: of the source, Ts.
        target_ids: of the target, Tt, the id that begins every target first.
        text: the source's text; without it, it is rebuilt from the ids.
        layers: which layers of the decoder and of the encoder to average, from 0; all by default.
        raw: show plain attention weights instead of norm-weighted shares.

    Raises:
        ValueError: there is no cross-attention of these tokens, or no such layer.
    """
    tokenizer = as_tokenizer(tokenizer)
    size = (len(target_ids), len(source_ids))
    cross = [one for one in recording if _side(one) == "decoder" and one.shape[2:] == size
             and not (one.is_causal and size[0] == size[1])]  # fmt: skip
    inside = [one for one in recording if _side(one) == "encoder"]
    if not cross or not inside:
        shapes = sorted({tuple(one.shape) for one in recording})
        raise ValueError(
            f"no cross-attention of {size[0]} target tokens to {size[1]} source tokens was "
            f"recorded; recorded shapes (batch, heads, queries, keys): {shapes}"
        )
    chosen = list(range(len(cross)) if layers is None else layers)
    wrong = [layer for layer in chosen if not 0 <= layer < len(cross)]
    if wrong:
        raise ValueError(f"there is no layer {wrong[0]}: the decoder has 0 to {len(cross) - 1}")
    maps = [(layer, cross[layer]) for layer in chosen]
    encoder = Recording(recording.model_name, inside)
    encoder.ids = np.array([list(source_ids)])
    depth = [layer for layer in chosen if layer < len(inside)]
    within = sources(encoder, tokenizer, text=text, layers=depth or None, raw=raw)

    written = read(tokenizer.target, target_ids[1:])
    words = [word for word in written.words if not word.special and has_words(word.text)]
    norms, note = norms_to_weigh_with([attention for _, attention in maps], raw)
    # The token at place i of the written ones stands at i + 1, and was written at i.
    found = measured_words(maps, norms, [word.tokens for word in words], within.words)
    queries = tuple(
        Query(
            word.text,
            place,
            tuple(token + 1 for token in word.tokens),
            tuple(
                Source(
                    word=source.text,
                    position=number,
                    tokens=source.tokens,
                    share=float(found.share[place, number]),
                    raw=float(found.raw[place, number]),
                    kind="special" if source.special else "word",
                    seen=bool(found.weights[place, number, 0] > 0),
                    heads=found.top_heads(place, number),
                )
                for number, source in enumerate(within.words)
            ),
        )
        for place, word in enumerate(words)
    )
    reads = Sources(
        model=recording.model_name,
        text=within.text,
        tokens=within.tokens,
        words=within.words,
        layers=tuple(chosen),
        causal=False,
        measure="raw" if norms is None else "share",
        note=note,
        queries=queries,
    )
    return Translation(written.text, written.labels, reads, within)


def _side(attention: AttentionMap) -> str:
    """ "encoder" or "decoder": the first of them in the module's path."""
    parts = attention.name.split(".")
    return next((part for part in parts if part in ("encoder", "decoder")), "")
