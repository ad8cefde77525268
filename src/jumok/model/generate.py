"""Text, token by token: greedy or sampled, whole or as a stream.

A `Decoder` goes on with its prompt; an `EncoderDecoder` reads it and writes a text of its own.
Each step the logits of the last token go through `Sampler`, the chosen token is fed back, and
the cache of keys and values makes that one row of work.

B batch, T tokens, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor

from jumok.model.added_text import AddedText, read_strings
from jumok.model.config import Learned
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.foreign import ForeignDecoder, ForeignEncoderDecoder
from jumok.model.sampling import Sampler
from jumok.model.speculative import Draft, read_draft, speculate
from jumok.model.transformer import Decoder
from jumok.model.writing import Writer, Writing, begin, first_ids
from jumok.tokens import as_tokenizer

__all__ = ["Draft", "Sampler", "generate", "stream", "stream_text"]

Stop = Literal["eos"] | int | Sequence[int] | None
Prompts = Tensor | Sequence[int] | Sequence[Sequence[int]]


class Options(TypedDict, total=False):
    """The keyword arguments of `generate`, where they are explained."""

    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    stop: Stop
    stop_strings: str | Sequence[str]
    mask: Tensor | None
    seed: int | torch.Generator | None
    draft: Decoder | ForeignDecoder | Literal["lookup"] | Draft | None


def generate(
    model: Writer,
    ids: Prompts,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Stop = "eos",
    stop_strings: str | Sequence[str] = (),
    tokenizer: Any = None,
    mask: Tensor | None = None,
    seed: int | torch.Generator | None = None,
    draft: Decoder | ForeignDecoder | Literal["lookup"] | Draft | None = None,
) -> Tensor:
    """Continue each text of a batch, or translate it.

    Args:
        model: a `Decoder`, or an `EncoderDecoder`, for which the prompts are sources.
        ids: (B, T) token ids of the prompts, or the ids of one prompt.
        max_new_tokens: how many tokens to add at most.
        temperature: 0 takes the most likely token at every step; see `Sampler`.
        top_k: see `Sampler`.
        top_p: see `Sampler`.
        min_p: see `Sampler`.
        repetition_penalty: see `Sampler`.
        stop: "eos": a text ends with one of ``model.config.eos_ids``; other ids that end it;
            `None`: nothing ends it before ``max_new_tokens``.
        stop_strings: a text also ends where one of these has appeared in what was added.
        tokenizer: needed for ``stop_strings``; ours or a transformers tokenizer.
        mask: (B, T), True or 1 = real token, for prompts of different lengths, padded on either
            side.
        seed: a number, or a ``torch.Generator``, for a result that can be repeated.
        draft: what guesses the next tokens of one text, so that the model reads several at a
            time: a smaller model of the same tokenizer, or "lookup", which takes what followed
            the last tokens earlier in the text. Likeliest tokens stay the same ones, and drawn
            tokens have the same probabilities; see `Draft`.

    Returns:
        (B, T + new): the prompts as they were given, then the new tokens, the one that ended a
        text included; of an `EncoderDecoder` (B, 1 + new): the targets with their first id.
        Where one text ended before others it is filled with
        ``model.config.pad_id`` (or its end-of-text id).

    Raises:
        ValueError: empty prompts, values out of range, more tokens than learned positions.

    Example:
        >>> ids = torch.tensor([tokenizer.encode("The capital of France is")])
        >>> tokenizer.decode(generate(model, ids, max_new_tokens=8, temperature=0)[0].tolist())
    """
    ids, _ = _read_prompts(ids, mask, model)
    steps = stream(
        model,
        ids,
        max_new_tokens,
        temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stop,
        stop_strings=stop_strings,
        tokenizer=tokenizer,
        mask=mask,
        seed=seed,
        draft=draft,
    )
    return torch.cat([first_ids(model, ids), *(tokens[:, None] for tokens in steps)], dim=1)


def stream(
    model: Writer,
    ids: Prompts,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    *,
    tokenizer: Any = None,
    **options: Unpack[Options],
) -> Iterator[Tensor]:
    """As `generate`, but give the new tokens (B,) of each step as soon as they are chosen."""
    ids, mask = _read_prompts(ids, options.get("mask"), model)
    strings = read_strings(options.get("stop_strings", ()))
    texts: list[AddedText] = []
    if strings:
        if tokenizer is None:
            raise ValueError(f"stop_strings={list(strings)} need a tokenizer: pass tokenizer=")
        texts = [AddedText(as_tokenizer(tokenizer), strings) for _ in ids]
    return _steps(model, ids, mask, max_new_tokens, _sampler(temperature, options), texts, options)


def stream_text(
    model: Writer,
    tokenizer: Any,
    prompt: str | Tensor | Sequence[int],
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    **options: Unpack[Options],
) -> Iterator[str]:
    """As `generate`, but give what is added to one prompt as text, piece by piece.

    Only whole characters are given: bytes of a character that is not finished wait for the rest.
    Text from a stop string on is not given.

    Args:
        model: a `Decoder` or `EncoderDecoder`.
        tokenizer: ours or a transformers tokenizer.
        prompt: text, or its token ids (T,) or (1, T).
        max_new_tokens: how many tokens to add at most.
        temperature: 0 takes the most likely token at every step; see `Sampler`.
        **options: as in `generate`.

    Returns:
        An iterator over pieces of text; together they are the added text.
    """
    tokenizer = as_tokenizer(tokenizer)
    ids, mask = _read_prompts(
        tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, options.get("mask"), model
    )
    if ids.shape[0] != 1:
        raise ValueError(f"stream_text takes one prompt; got a batch of {ids.shape[0]}")
    text = AddedText(tokenizer, read_strings(options.get("stop_strings", ())))
    steps = _steps(
        model, ids, mask, max_new_tokens, _sampler(temperature, options), [text], options
    )
    return _pieces(steps, text)


def _pieces(steps: Iterator[Tensor], text: AddedText) -> Iterator[str]:
    for _ in steps:
        if piece := text.take():
            yield piece
    if piece := text.finish():
        yield piece


def _steps(
    model: Writer,
    ids: Tensor,
    mask: Tensor | None,
    max_new_tokens: int,
    sampler: Sampler,
    texts: Sequence[AddedText],
    options: Options,
) -> Iterator[Tensor]:
    """Check everything now; the work is done when the iterator is asked for more."""
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens}: at least 0")
    _check_room(model, ids, mask, max_new_tokens)
    stop_ids = _stop_ids(options.get("stop", "eos"), model)
    seed = options.get("seed")
    generator = seed if isinstance(seed, torch.Generator) else None
    if isinstance(seed, int):
        generator = torch.Generator(device=ids.device).manual_seed(seed)
    draft = read_draft(options.get("draft"), model, len(ids), mask)
    return _run(model, ids, mask, max_new_tokens, sampler, stop_ids, texts, generator, draft)


def _run(
    model: Writer,
    ids: Tensor,
    mask: Tensor | None,
    max_new_tokens: int,
    sampler: Sampler,
    stop_ids: Tensor | None,
    texts: Sequence[AddedText],
    generator: torch.Generator | None,
    draft: Draft | None,
) -> Iterator[Tensor]:
    """The new tokens (B,) of each step, until every text has ended."""
    writing = begin(model, ids, mask, max_new_tokens)
    fill = _fill_id(model, stop_ids)
    ended = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
    was_training = model.training
    if was_training:
        model.eval()
    try:
        if draft is None:
            chosen = _one_by_one(writing, max_new_tokens, sampler, generator)
        else:
            chosen = speculate(writing, draft, max_new_tokens, sampler, generator)
        for tokens in chosen:
            tokens = torch.where(ended, fill, tokens)
            for row, added in enumerate(texts):
                if not ended[row]:
                    added.push(int(tokens[row]))
                    ended[row] = added.stopped
            if stop_ids is not None:
                ended = ended | torch.isin(tokens, stop_ids)
            yield tokens
            if bool(ended.all()):
                return
    finally:
        model.train(was_training)


def _one_by_one(
    writing: Writing, max_new_tokens: int, sampler: Sampler, generator: torch.Generator | None
) -> Iterator[Tensor]:
    """The next token (B,) of each text, one step of the model each."""
    seen = writing.seen
    for _ in range(max_new_tokens):
        with torch.no_grad():
            tokens = sampler(writing.logits()[:, -1], seen, generator)
        yield tokens
        writing.push(tokens[:, None])
        if sampler.repetition_penalty != 1.0:
            seen = torch.cat([seen, tokens[:, None]], dim=1)


def _sampler(temperature: float, options: Options) -> Sampler:
    return Sampler(
        temperature,
        options.get("top_k"),
        options.get("top_p"),
        options.get("min_p"),
        options.get("repetition_penalty", 1.0),
    )


def _read_prompts(ids: Prompts, mask: Tensor | None, model: Writer) -> tuple[Tensor, Tensor | None]:
    if not isinstance(model, Writer):
        raise TypeError(
            f"generate takes a Decoder, such as smollm2; this {type(model).__name__} doesn't "
            f"predict the next token"
        )
    place = _device(model)
    try:
        prompts = torch.as_tensor(ids, device=place)
    except (ValueError, TypeError):
        raise ValueError(
            "prompts of different lengths: fill them up to one length and pass a mask "
            "(batch, tokens), True or 1 for a real token"
        ) from None
    if prompts.ndim == 1:
        prompts = prompts[None]
    if prompts.ndim != 2 or prompts.is_floating_point() or not prompts.numel():
        raise ValueError(
            f"generate takes token ids (batch, tokens) with at least one token; got "
            f"{prompts.dtype} {tuple(prompts.shape)}"
        )
    if mask is None:
        return prompts, None
    visible = torch.as_tensor(mask, device=place) == 1
    if visible.shape != prompts.shape:
        raise ValueError(
            f"mask {tuple(visible.shape)} must have the shape of ids {tuple(prompts.shape)}"
        )
    empty = [row for row, some in enumerate(visible.any(dim=1).tolist()) if not some]
    if empty:
        raise ValueError(f"mask leaves no real token in row {empty[0]}; nothing to continue")
    return prompts, visible


def _check_room(model: Writer, ids: Tensor, mask: Tensor | None, new: int) -> None:
    """With learned positions a text cannot grow beyond the table."""
    if isinstance(model, (ForeignDecoder, ForeignEncoderDecoder)):
        return  # transformers has its own words for that
    if isinstance(model, EncoderDecoder):
        config, longest, what = model.config.decoder, 1, "a target's first token"
    else:
        config = model.config
        longest = ids.shape[1] if mask is None else int(mask.sum(dim=1).max())
        what = f"a prompt of {longest} tokens"
    if isinstance(config.positions, Learned) and longest + new > config.context + 1:
        # The last new token is never fed back, so it needs no position.
        raise ValueError(
            f"{what} and max_new_tokens={new} need more than the {config.context} positions of "
            f"this model; at most {max(0, config.context + 1 - longest)} can be added"
        )


def _stop_ids(stop: Stop, model: Writer) -> Tensor | None:
    if stop is None:
        return None
    if isinstance(stop, str):
        if stop != "eos":
            raise ValueError(
                f"stop={stop!r}: 'eos', token ids, or None; for texts use stop_strings"
            )
        chosen = tuple(model.config.eos_ids)
    else:
        chosen = (stop,) if isinstance(stop, int) else tuple(stop)
    return torch.tensor(chosen, device=_device(model)) if chosen else None


def _fill_id(model: Writer, stop_ids: Tensor | None) -> Tensor:
    """What follows a text that has ended before others."""
    config = model.config
    if config.pad_id is not None:
        return torch.tensor(config.pad_id, device=_device(model))
    return torch.tensor(0) if stop_ids is None else stop_ids[0]


def _device(model: Writer) -> torch.device:
    return next(model.parameters()).device
