"""Masked tokens filled in by an encoder: the surest first, each seen by the next.

T tokens, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from jumok.model.transformer import Encoder
from jumok.tokens import as_tokenizer

__all__ = ["Filled", "fill"]


@dataclass(frozen=True)
class Filled:
    """What was put in the place of one mask.

    Args:
        place: which token of the text it is, from 0.
        token: the id that was put there.
        text: the same as text.
        share: its probability when it was chosen.
        others: the next likeliest, ``(text, probability)`` each.
    """

    place: int
    token: int
    text: str
    share: float
    others: tuple[tuple[str, float], ...]


def fill(model: Encoder, tokenizer: Any, text: str, n_others: int = 4) -> tuple[str, list[Filled]]:
    """Fill in the masks of a text.

    All masks are guessed; the one whose likeliest token is most probable gets it; the rest are
    guessed anew with that token in place.

    Args:
        model: an `Encoder` with a masked-token head.
        tokenizer: ours or a transformers tokenizer, with a mask token.
        text: with one mask or more, written as the tokenizer has it, or as [MASK].
        n_others: how many other guesses to keep of each.

    Returns:
        ``(text, filled)``: the text without masks, and what was filled in, in the order of the
        text.

    Raises:
        ValueError: no mask token, no mask in the text, a model without a masked-token head.
    """
    tokenizer = as_tokenizer(tokenizer)
    name = tokenizer.config.get("mask_token")
    mask_id = tokenizer.backend.token_to_id(name) if isinstance(name, str) else None
    if mask_id is None:
        raise ValueError("this tokenizer has no mask token")
    ids = torch.tensor([tokenizer.encode(text.replace("[MASK]", name))])
    open_places = (ids[0] == mask_id).nonzero()[:, 0].tolist()
    if not open_places:
        raise ValueError(f"the text has nothing to fill in: write {name} where a word is missing")
    special = sorted(id for id in tokenizer.special_ids if id < model.config.vocab_size)
    found: dict[int, Filled] = {}
    while open_places:
        with torch.no_grad():
            logits = model.logits(model(ids))[0, open_places].float()  # (masks, V)
        logits[:, special] = -torch.inf
        shares = logits.softmax(dim=-1)
        row = int(shares.amax(dim=-1).argmax())
        best = shares[row].topk(min(1 + n_others, shares.shape[-1]))
        pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        place = open_places.pop(row)
        ids[0, place] = pairs[0][0]
        found[place] = Filled(
            place,
            pairs[0][0],
            tokenizer.decode([pairs[0][0]]).strip(),
            pairs[0][1],
            tuple((tokenizer.decode([token]).strip(), share) for token, share in pairs[1:]),
        )
    whole = tokenizer.decode([id for id in ids[0].tolist() if id not in tokenizer.special_ids])
    return whole.strip(), [found[place] for place in sorted(found)]
