"""Greedy generation is the argmax of whole forwards, token by token, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.peers import DECODERS, ENCODER_DECODERS, peer_folder

from jumok.model.checkpoints import read_folder
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.generate import generate

LENGTHS = (7, 3, 1, 5)
NEW = 12


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 66, (n,), generator=generator).tolist() for n in LENGTHS]


def filled(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The texts as one batch, padding on the left, on the right, or on both sides."""
    longest = max(LENGTHS) + 2
    ids, mask = torch.zeros(2, len(LENGTHS), longest, dtype=torch.long).unbind()
    for row, text in enumerate(texts()):
        free = longest - len(text)
        start = {"left": free, "right": 0, "both": free // 2}[side]
        ids[row, start : start + len(text)] = torch.tensor(text)
        mask[row, start : start + len(text)] = 1
    return ids, mask


@torch.no_grad()
def by_whole_forwards(model: Any, text: list[int]) -> list[int]:
    """One text without cache, padding or batch: every token from a forward of all before it."""
    ids = torch.tensor([text])
    is_target = isinstance(model, EncoderDecoder)
    written = torch.tensor([[model.config.bos_id]]) if is_target else ids
    start = written.shape[1]
    for _ in range(NEW):
        logits = (model(ids, written) if is_target else model(written))[:, -1]
        logits[:, list(model.config.suppressed_ids)] = -torch.inf
        written = torch.cat([written, logits.argmax(-1, keepdim=True)], dim=1)
    return written[0, start:].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [*DECODERS, *ENCODER_DECODERS])
def test_greedy_is_the_argmax_of_whole_forwards(name: str, tmp_path: Path) -> None:
    model: Any = read_folder(peer_folder(name, tmp_path))
    expected = [by_whole_forwards(model, text) for text in texts()]
    for side in ("left", "right", "both"):
        ids, mask = filled(side)
        found = generate(model, ids, NEW, 0, mask=mask, stop=None)[:, -NEW:]
        assert found.tolist() == expected, side
    for text, answer in zip(texts(), expected, strict=True):
        assert generate(model, text, NEW, 0, stop=None)[0, -NEW:].tolist() == answer
        drafted = generate(model, text, NEW, 0, stop=None, draft="lookup")
        assert drafted[0, -NEW:].tolist() == answer
