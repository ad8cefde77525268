"""Whole texts as vectors: the mean of an encoder's hidden states, or as a model's folder says.

B batch, T tokens, E emb_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from jumok.model.foreign import ForeignDecoder, ForeignEncoder
from jumok.model.pooling import MODES, SentenceHead, pooled
from jumok.model.transformer import Decoder, Encoder
from jumok.tokens import as_tokenizer, shortened

__all__ = ["embed", "mean_pooled"]


_READERS = (Encoder, ForeignEncoder)
_WRITERS = (Decoder, ForeignDecoder)


def embed(
    model: Encoder | Decoder | ForeignEncoder | ForeignDecoder,
    tokenizer: Any,
    texts: str | Sequence[str],
    *,
    pooling: str | None = None,
    prompt: str | None = None,
    batch_size: int = 32,
    normalize: bool | None = None,
    truncate: bool = False,
) -> Tensor:
    """Each text as one vector: texts that mean the same point the same way.

    The mean of the hidden states of all tokens, special ones included, divided by its length
    (Reimers and Gurevych 2019). For vectors of length 1 the product of two is the cosine of the
    angle between them.

    Args:
        model: one that was trained for it: an `Encoder`, such as minilm, or a `Decoder` whose
            folder has a ``modules.json``, such as Qwen3-Embedding.
        tokenizer: its tokenizer; ours or a transformers tokenizer.
        texts: one text, or several.
        pooling: how a text is summed up: "mean", "first" (the first token, called CLS), "last",
            "max", "mean_sqrt_len" or "weighted_mean". `None`: as a folder of sentence-transformers
            says in ``modules.json``, with its dense maps; "mean" for any other encoder.
        prompt: the name of a prompt of the folder's (``config_sentence_transformers.json``), such
            as "query", which is put before each text. `None`: the folder's default, if it has one.
        batch_size: how many texts go through the model at once.
        normalize: divide each vector by its length. `None`: as ``modules.json`` says; `True` for
            any other model.
        truncate: leave out what is beyond the model's context, or beyond the shorter one that
            such a folder names, instead of refusing the text.

    Returns:
        float32 (texts, E), or (E,) for one text; as wide as the last dense map, if there is one.

    Raises:
        TypeError: a model that reads no text as a whole, or texts that are none.
        ValueError: a text is empty for the tokenizer, or longer than the model's context; a decoder
            whose folder doesn't say how it sums a text up; no such pooling or prompt.

    Example:
        >>> model, tokenizer = jumok.load("minilm")
        >>> one, other = jumok.embed(model, tokenizer, ["A cat sleeps.", "A kitten naps."])
        >>> similarity = one @ other
    """
    if not isinstance(model, (*_READERS, *_WRITERS)):
        raise TypeError(
            f"embed takes an Encoder, such as minilm, or a Decoder; this {type(model).__name__} "
            f"was not made to read a text as a whole"
        )
    if isinstance(texts, str):
        vectors = embed(
            model,
            tokenizer,
            [texts],
            pooling=pooling,
            prompt=prompt,
            batch_size=batch_size,
            normalize=normalize,
            truncate=truncate,
        )
        return vectors[0]
    if pooling is not None and pooling not in MODES:
        raise ValueError(f"pooling={pooling!r}: one of {', '.join(MODES)}")
    named = model.sentence_head
    if named is None and pooling is None and isinstance(model, _WRITERS):
        raise ValueError(
            f"this {type(model).__name__}'s folder has no modules.json that says how it sums a "
            f"text up, so it was probably trained to write. Take an encoder, such as minilm; or, "
            f"if its card says that it gives embeddings, pass the pooling it names: pooling='last'"
        )
    before = _prompt(named, prompt)
    if pooling is None and named is not None:
        head = named if normalize is not False else named.unnormalized()
    else:
        head, normalize = SentenceHead((pooling or "mean",)), normalize is not False
    context = min(model.config.context, (named and named.context) or model.config.context)
    tokenizer = as_tokenizer(tokenizer)
    lower = named is not None and named.lower_case
    encoded = [_ids(context, tokenizer, before, text, lower, truncate) for text in texts]
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: at least 1")
    place = next(model.parameters()).device
    vectors = torch.empty(len(encoded), head.width(model.config.emb_dim), device=place)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for rows, ids, mask in _batches(encoded, batch_size, model.config.pad_id or 0):
                ids, mask = ids.to(place), mask.to(place)
                read = model.hidden if isinstance(model, _WRITERS) else model
                vectors[rows] = head(read(ids, mask).float(), mask)
    finally:
        model.train(was_training)
    return F.normalize(vectors, dim=-1) if normalize else vectors


def mean_pooled(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over real tokens, (B, T, E) and (B, T) → (B, E); 0 where there are none."""
    return pooled(hidden, mask, "mean")


def _prompt(head: SentenceHead | None, name: str | None) -> str:
    """What is put before each text."""
    prompts = {} if head is None else head.prompts
    name = head.prompt if name is None and head is not None else name
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise ValueError(
            f"prompt={name!r}: the model's folder has {known}; any other text can be put before "
            f"the texts themselves"
        )
    return prompts[name]


def _ids(
    context: int, tokenizer: Any, before: str, text: str, lower: bool, truncate: bool
) -> list[int]:
    if not isinstance(text, str):
        raise TypeError(f"embed takes texts; got {type(text).__name__} ({text!r})")
    whole = before + text
    ids: list[int] = tokenizer.encode(whole.lower() if lower else whole)
    if not ids:
        raise ValueError("a text is empty for this model: it gives no token")
    if len(ids) <= context:
        return ids
    if not truncate:
        raise ValueError(
            f"the text {shortened(text, 60)!r} has {len(ids):,} tokens, the model reads at most "
            f"{context:,}; shorten it, or pass truncate=True"
        )
    # The text is cut, not the tokens that the tokenizer puts around it.
    around = tokenizer.encode("")
    starts = _alike(ids, around)
    ends = _alike(ids[::-1], around[starts:][::-1])
    return ids[: context - ends] + ids[len(ids) - ends :]


def _alike(one: list[int], other: list[int]) -> int:
    """How many of the first numbers are the same in both."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _batches(
    encoded: Sequence[list[int]], size: int, pad_id: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Texts of like length together: their places, ids (B, T) and mask (B, T)."""
    order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        longest = len(encoded[rows[-1]])
        ids = torch.full((len(rows), longest), pad_id)
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for number, row in enumerate(rows):
            ids[number, : len(encoded[row])] = torch.tensor(encoded[row])
            mask[number, : len(encoded[row])] = True
        yield rows, ids, mask
