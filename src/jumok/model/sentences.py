"""Whole texts as vectors: the mean of an encoder's hidden states, or as its folder says.

B batch, T tokens, E emb_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from jumok.model.foreign import ForeignEncoder
from jumok.model.pooling import MODES, SentenceHead, pooled
from jumok.model.transformer import Encoder
from jumok.tokens import as_tokenizer, shortened

__all__ = ["embed", "mean_pooled"]


def embed(
    model: Encoder | ForeignEncoder,
    tokenizer: Any,
    texts: str | Sequence[str],
    *,
    pooling: str | None = None,
    batch_size: int = 32,
    normalize: bool | None = None,
    truncate: bool = False,
) -> Tensor:
    """Each text as one vector: texts that mean the same point the same way.

    The mean of the hidden states of all tokens, special ones included, divided by its length
    (Reimers and Gurevych 2019). For vectors of length 1 the product of two is the cosine of the
    angle between them.

    Args:
        model: an `Encoder` that was trained for it, such as minilm.
        tokenizer: its tokenizer; ours or a transformers tokenizer.
        texts: one text, or several.
        pooling: how a text is summed up: "mean", "first" (the first token, called CLS), "last",
            "max", "mean_sqrt_len" or "weighted_mean". `None`: as a folder of sentence-transformers
            says in ``modules.json``, with its dense maps; "mean" for any other model.
        batch_size: how many texts go through the model at once.
        normalize: divide each vector by its length. `None`: as ``modules.json`` says; `True` for
            any other model.
        truncate: leave out what is beyond the model's context, or beyond the shorter one that
            such a folder names, instead of refusing the text.

    Returns:
        float32 (texts, E), or (E,) for one text; as wide as the last dense map, if there is one.

    Raises:
        TypeError: a model without hidden states, or texts that are none.
        ValueError: a text is empty for the tokenizer, or longer than the model's context.

    Example:
        >>> model, tokenizer = jumok.load("minilm")
        >>> one, other = jumok.embed(model, tokenizer, ["A cat sleeps.", "A kitten naps."])
        >>> similarity = one @ other
    """
    if not isinstance(model, (Encoder, ForeignEncoder)):
        raise TypeError(
            f"embed takes an Encoder, such as minilm; this {type(model).__name__} was not made to "
            f"read a text as a whole"
        )
    if isinstance(texts, str):
        vectors = embed(
            model,
            tokenizer,
            [texts],
            pooling=pooling,
            batch_size=batch_size,
            normalize=normalize,
            truncate=truncate,
        )
        return vectors[0]
    if pooling is not None and pooling not in MODES:
        raise ValueError(f"pooling={pooling!r}: one of {', '.join(MODES)}")
    named: SentenceHead | None = getattr(model, "sentence_head", None)
    if pooling is None and named is not None:
        head = named if normalize is not False else named.unnormalized()
    else:
        head, normalize = SentenceHead((pooling or "mean",)), normalize is not False
    context = min(model.config.context, (named and named.context) or model.config.context)
    encoded = [_ids(context, as_tokenizer(tokenizer), text, truncate) for text in texts]
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
                hidden = model(ids, mask).float()
                vectors[rows] = head(hidden, mask)
    finally:
        model.train(was_training)
    return F.normalize(vectors, dim=-1) if normalize else vectors


def mean_pooled(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over real tokens, (B, T, E) and (B, T) → (B, E); 0 where there are none."""
    return pooled(hidden, mask, "mean")


def _ids(context: int, tokenizer: Any, text: str, truncate: bool) -> list[int]:
    if not isinstance(text, str):
        raise TypeError(f"embed takes texts; got {type(text).__name__} ({text!r})")
    ids: list[int] = tokenizer.encode(text)
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
    ends = len(around) // 2 if ids[-1:] == around[-1:] else 0
    return ids[: context - ends] + ids[len(ids) - ends :]


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
