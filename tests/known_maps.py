"""Recordings whose weights and value norms are known, and a tokenizer of few words."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from jumok.tokens import Tokenizer

VOCABULARY = ["[CLS]", "[SEP]", "[UNK]", "an", "apple", "and", "orange", "phone", "ap", "##ple"]


def tokenizer(*, special: bool = True, whole: bool = True) -> Tokenizer:
    """Words of a small vocabulary; ``whole=False`` has *apple* in two pieces only."""
    pieces = [piece for piece in VOCABULARY if whole or piece != "apple"]
    ids = {piece: VOCABULARY.index(piece) for piece in pieces}
    backend = Backend(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
        )
    return Tokenizer(backend)


class Map:
    """Known weights (H, T, T) and value norms (H, T), as an AttentionMap shows them."""

    value_note = "a gate stands between the attention and its output projection"

    def __init__(self, weights: Any, norms: Any | None) -> None:
        self.weights = np.asarray(weights, np.float32)[None]
        self.norms = None if norms is None else np.asarray(norms, np.float32)[None]
        self.shape = self.weights.shape
        self.heads = tuple(range(self.shape[1]))
        self.is_causal = not np.triu(self.weights[0, 0], 1).any()
        self.asked: list[int] = []

    def __getitem__(self, index: Any) -> Any:
        part = self.weights[index]
        self.asked.append(part.size)
        return part

    def value_norms(self) -> Any:
        return self.norms


class Recorded(list[Map]):
    """A recording of one text."""

    model_name = "toy"

    def __init__(self, maps: list[Map], ids: list[int] | None) -> None:
        super().__init__(maps)
        self.ids = None if ids is None else np.array([ids])


def softmax_rows(*shape: int, seed: int = 0, causal: bool = False) -> Any:
    scores = np.random.default_rng(seed).normal(size=shape) * 2
    if causal:
        scores = np.where(np.tri(shape[-1], dtype=bool), scores, -np.inf)
    scores = np.exp(scores)
    return scores / scores.sum(-1, keepdims=True)


def recorded(text: str, tokens: Tokenizer, layers: int = 2, causal: bool = False) -> Recorded:
    ids = tokens.encode(text)
    size, rng = len(ids), np.random.default_rng(7)
    maps = [
        Map(
            softmax_rows(3, size, size, seed=layer, causal=causal),
            rng.uniform(0.1, 3, (3, size)),
        )
        for layer in range(layers)
    ]
    return Recorded(maps, ids)
