"""Text, token by token: greedy or sampled, whole or as a stream.

Each step the logits of the last token go through `Sampler`, the chosen token is fed back, and
the cache of keys and values makes that one row of work.

B batch, T tokens, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor

from jumok.model.transformer import Decoder
from jumok.tokens import Tokenizer, as_tokenizer

__all__ = ["Sampler", "generate", "stream", "stream_text"]

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


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen from its logits.

    In this order: repeated tokens are made less likely; logits are divided by the temperature;
    all but the ``top_k`` most likely tokens are dropped; then all but the fewest whose
    probabilities sum to ``top_p``; then those less likely than ``min_p`` times the likeliest;
    one of the rest is drawn.

    Args:
        temperature: 0 takes the most likely token (argmax).
        top_k: how many tokens to keep, clamped to the vocabulary; `None` for all.
        top_p: probability mass to keep, above 0 and at most 1 (Holtzman et al. 2020).
        min_p: share of the highest probability, from 0 to 1 (Nguyen et al. 2024).
        repetition_penalty: logits of tokens that are in the text are divided by it if positive
            and multiplied if negative (Keskar et al. 2019); 1 for none.

    Raises:
        ValueError: a value outside these ranges.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, allowed, meaning in (
            ("temperature", self.temperature >= 0, "0 for the likeliest token, or above"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1, or None"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1, or None"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1, or None"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0; 1 for none"),
        ):
            if not allowed:
                raise ValueError(f"{name}={getattr(self, name)}: {meaning}")

    def __call__(
        self, logits: Tensor, seen: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """The next token of each text.

        Args:
            logits: (B, V)
            seen: (B, T) the tokens so far.
            generator: random numbers; `None` for torch's own.

        Returns:
            (B,) token ids.
        """
        if self.temperature == 0:
            return self._penalised(logits, seen).argmax(dim=-1)
        return torch.multinomial(self.shares(logits, seen), 1, generator=generator)[:, 0]

    def shares(self, logits: Tensor, seen: Tensor) -> Tensor:
        """The probabilities (B, V) to draw from, up to a factor; arguments as in a call."""
        logits = self._penalised(logits, seen).float() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            lowest = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < lowest, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            shares = ordered.softmax(dim=-1)
            # A token stays while those before it have not reached top_p: the first always stays.
            dropped = shares.cumsum(dim=-1) - shares >= self.top_p
            logits = logits.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)
        shares = logits.softmax(dim=-1)
        if self.min_p:
            lowest = self.min_p * shares.amax(dim=-1, keepdim=True)
            shares = shares.masked_fill(shares < lowest, 0.0)
        return shares

    def _penalised(self, logits: Tensor, seen: Tensor) -> Tensor:
        if self.repetition_penalty == 1.0:
            return logits
        found = logits.gather(1, seen)
        penalty = self.repetition_penalty
        return logits.scatter(1, seen, torch.where(found > 0, found / penalty, found * penalty))


def generate(
    model: Decoder,
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
) -> Tensor:
    """Continue each text of a batch.

    Args:
        model: a `Decoder`.
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

    Returns:
        (B, T + new): the prompts as they were given, then the new tokens, the one that ended a
        text included. Where one text ended before others it is filled with
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
    )
    return torch.cat([ids, *(tokens[:, None] for tokens in steps)], dim=1)


def stream(
    model: Decoder,
    ids: Prompts,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    *,
    tokenizer: Any = None,
    **options: Unpack[Options],
) -> Iterator[Tensor]:
    """As `generate`, but give the new tokens (B,) of each step as soon as they are chosen."""
    ids, mask = _read_prompts(ids, options.get("mask"), model)
    strings = _strings(options.get("stop_strings", ()))
    texts: list[_Text] = []
    if strings:
        if tokenizer is None:
            raise ValueError(f"stop_strings={list(strings)} need a tokenizer: pass tokenizer=")
        texts = [_Text(as_tokenizer(tokenizer), strings) for _ in ids]
    return _steps(model, ids, mask, max_new_tokens, _sampler(temperature, options), texts, options)


def stream_text(
    model: Decoder,
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
        model: a `Decoder`.
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
    text = _Text(tokenizer, _strings(options.get("stop_strings", ())))
    steps = _steps(
        model, ids, mask, max_new_tokens, _sampler(temperature, options), [text], options
    )
    return _pieces(steps, text)


def _pieces(steps: Iterator[Tensor], text: _Text) -> Iterator[str]:
    for _ in steps:
        if piece := text.take():
            yield piece
    if piece := text.finish():
        yield piece


class _Text:
    """The text of what is added to one prompt, and whether a stop string has appeared in it.

    Text that may be the beginning of a stop string is kept back.
    """

    def __init__(self, tokenizer: Tokenizer, strings: tuple[str, ...]) -> None:
        self._decoder = tokenizer.stream()
        self._strings = strings
        self._text = ""  # not given out yet
        self.stopped = False

    def push(self, token: int) -> None:
        self._add(self._decoder.push(token))

    def take(self) -> str:
        """Text that is certain by now."""
        keep = 0
        if not self.stopped:
            for string in self._strings:
                for length in range(min(len(string) - 1, len(self._text)), keep, -1):
                    if self._text.endswith(string[:length]):
                        keep = length
                        break
        cut = len(self._text) - keep
        piece, self._text = self._text[:cut], self._text[cut:]
        return piece

    def finish(self) -> str:
        """The rest, without bytes that never became a character."""
        if not self.stopped:
            self._add(self._decoder.finish().rstrip("�"))
        piece, self._text = self._text, ""
        return piece

    def _add(self, piece: str) -> None:
        if self.stopped:
            return
        self._text += piece
        found = [self._text.find(string) for string in self._strings if string in self._text]
        if found:
            self._text, self.stopped = self._text[: min(found)], True


def _steps(
    model: Decoder,
    ids: Tensor,
    mask: Tensor | None,
    max_new_tokens: int,
    sampler: Sampler,
    texts: Sequence[_Text],
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
    if mask is not None:  # real tokens to the right, in their order
        order = mask.to(torch.uint8).argsort(dim=1, stable=True)
        ids, mask = ids.gather(1, order), mask.gather(1, order)
    return _run(model, ids, mask, max_new_tokens, sampler, stop_ids, texts, generator)


def _run(
    model: Decoder,
    ids: Tensor,
    mask: Tensor | None,
    max_new_tokens: int,
    sampler: Sampler,
    stop_ids: Tensor | None,
    texts: Sequence[_Text],
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """The new tokens (B,) of each step, until every text has ended."""
    fill = _fill_id(model, stop_ids)
    seen = ids if mask is None else torch.where(mask, ids, ids[:, -1:])
    ended = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
    cache = model.new_cache()
    was_training = model.training
    if was_training:
        model.eval()
    try:
        for _ in range(max_new_tokens):
            with torch.no_grad():
                logits = model(ids, mask, cache, last=1)[:, -1]
                tokens = torch.where(ended, fill, sampler(logits, seen, generator))
            for row, text in enumerate(texts):
                if not ended[row]:
                    text.push(int(tokens[row]))
                    ended[row] = text.stopped
            if stop_ids is not None:
                ended = ended | torch.isin(tokens, stop_ids)
            yield tokens
            if bool(ended.all()):
                return
            ids, mask = tokens[:, None], None
            if sampler.repetition_penalty != 1.0:
                seen = torch.cat([seen, ids], dim=1)
    finally:
        model.train(was_training)


def _sampler(temperature: float, options: Options) -> Sampler:
    return Sampler(
        temperature,
        options.get("top_k"),
        options.get("top_p"),
        options.get("min_p"),
        options.get("repetition_penalty", 1.0),
    )


def _read_prompts(
    ids: Prompts, mask: Tensor | None, model: Decoder
) -> tuple[Tensor, Tensor | None]:
    if not isinstance(model, Decoder):
        raise TypeError(
            f"generate takes a Decoder, such as smollm2; this {type(model).__name__} doesn't "
            f"predict the next token"
        )
    place = model.embedding.weight.device
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


def _check_room(model: Decoder, ids: Tensor, mask: Tensor | None, new: int) -> None:
    """With learned positions a text cannot grow beyond the table."""
    longest = ids.shape[1] if mask is None else int(mask.sum(dim=1).max())
    if model.positions is not None and longest + new > model.config.context + 1:
        # The last new token is never fed back, so it needs no position.
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={new} need more than the "
            f"{model.config.context} positions of this model; at most "
            f"{max(0, model.config.context + 1 - longest)} can be added"
        )


def _stop_ids(stop: Stop, model: Decoder) -> Tensor | None:
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
    return torch.tensor(chosen, device=model.embedding.weight.device) if chosen else None


def _strings(stop_strings: str | Sequence[str]) -> tuple[str, ...]:
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    if "" in strings:
        raise ValueError("a stop string must not be empty")
    return strings


def _fill_id(model: Decoder, stop_ids: Tensor | None) -> Tensor:
    """What follows a text that has ended before others."""
    config = model.config
    if config.pad_id is not None:
        return torch.tensor(config.pad_id, device=model.embedding.weight.device)
    return torch.tensor(0) if stop_ids is None else stop_ids[0]
