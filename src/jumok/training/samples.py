"""What the model writes at an evaluation: a few lines a person can judge it by."""

from __future__ import annotations

import torch

from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.generate import generate
from jumok.model.transformer import Decoder, Encoder
from jumok.tokens import Tokenizer
from jumok.training.batches import Batch

__all__ = ["Sample", "sample"]

Sample = tuple[str, str]  # what was given, what the model made of it

_GIVEN, _NEW = 32, 96  # tokens at most
_ROWS = 3


@torch.no_grad()
def sample(
    model: Decoder | Encoder | EncoderDecoder,
    tokenizer: Tokenizer,
    batch: Batch,
    prompt: str | None = None,
    seed: int = 0,
) -> list[Sample]:
    """Let a model write, or guess, from the beginning of a batch it has not learned from.

    A decoder goes on from the prompt, an encoder-decoder answers sources, an encoder fills masks.

    Args:
        model: in eval mode.
        tokenizer: of the model.
        batch: of the validation text.
        prompt: what to go on from, or to answer, instead.
        seed: of the choice of tokens.
    """
    if isinstance(model, EncoderDecoder):
        return _answers(model, tokenizer, batch, prompt)
    if isinstance(model, Encoder):
        return [_guesses(model, tokenizer, batch)]
    place = next(model.parameters()).device
    ids = batch.ids[:1, : max(1, min(_GIVEN, model.config.context // 4))].to(place)
    if prompt is not None:
        ids = torch.tensor([tokenizer.encode(prompt) or ids[0, :1].tolist()], device=place)
    new = min(_NEW, max(1, model.config.context // 2))
    ids = ids[:, -max(1, model.config.context - new) :]
    written = generate(model, ids, new, temperature=0.8, top_k=50, seed=seed)
    given, whole = tokenizer.decode(ids[0]), tokenizer.decode(written[0])
    return [(given, whole[len(given) :])]


def _answers(
    model: EncoderDecoder, tokenizer: Tokenizer, batch: Batch, prompt: str | None
) -> list[Sample]:
    place = next(model.parameters()).device
    sources, mask = batch.ids[:_ROWS], None if batch.mask is None else batch.mask[:_ROWS]
    if prompt is not None:
        sources, mask = torch.tensor([tokenizer.encode(prompt)]), None
    found = generate(
        model,
        sources.to(place),
        min(_NEW, model.config.decoder.context - 1),
        temperature=0,
        mask=None if mask is None else mask.to(place),
    )
    return [
        (tokenizer.decode(source).strip(), tokenizer.decode(target).strip())
        for source, target in zip(sources, found, strict=True)
    ]


def _guesses(model: Encoder, tokenizer: Tokenizer, batch: Batch) -> Sample:
    """A row with its masks, and the same with what the model puts there: ``⟨guess⟩``."""
    place = next(model.parameters()).device
    mask = None if batch.mask is None else batch.mask[:1].to(place)
    ids, wanted = batch.ids[:1].to(place), batch.targets[0, : _GIVEN + _NEW].tolist()
    hidden = model(ids, mask)[:, : _GIVEN + _NEW]
    best = model.logits(hidden)[0].argmax(-1).tolist()
    given = ids[0, : len(wanted)].tolist()
    filled, run = "", list[int]()
    for id, target, guess in zip(given, wanted, best, strict=True):
        if target < 0:
            run.append(id)
            continue
        filled += tokenizer.decode(run, special=True) + f"⟨{tokenizer.decode([guess])}⟩"
        run = []
    filled += tokenizer.decode(run, special=True)
    return tokenizer.decode(given, special=True), filled
