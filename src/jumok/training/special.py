"""Which special tokens a tokenizer has, and what it puts around a text."""

from __future__ import annotations

from jumok.tokens import Tokenizer

__all__ = ["ends_of", "frame_of", "special_id"]

_SPELLINGS = {
    "mask_token": ("[MASK]", "<mask>"),
    "sep_token": ("[SEP]", "</s>"),
    "cls_token": ("[CLS]", "<s>"),
    "eos_token": ("</s>", "<|endoftext|>"),
    "pad_token": ("[PAD]", "<pad>"),
}


def special_id(tokenizer: Tokenizer, *names: str) -> int | None:
    """The id of the first of these special tokens that the tokenizer has.

    One that isn't named ("mask_token" and so on) is looked for under its usual spellings.
    """
    for name in names:
        token = tokenizer.config.get(name)
        if token is not None and (id := tokenizer.backend.token_to_id(str(token))) is not None:
            return int(id)
    for name in names:
        for token in _SPELLINGS.get(name, ()):
            id = tokenizer.backend.token_to_id(token)
            if id is not None and id in tokenizer.special_ids:
                return int(id)
    return None


def frame_of(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after a text."""
    inner, whole = tokenizer.encode("a", special=False), tokenizer.encode("a")
    for place in range(len(whole) - len(inner) + 1):
        if whole[place : place + len(inner)] == inner:
            return whole[:place], whole[place + len(inner) :]
    return [], []


def ends_of(tokenizer: Tokenizer, family: str) -> tuple[list[int], list[int]]:
    """The ids that a document of a token file begins and ends with.

    Raises:
        ValueError: the tokenizer has no token that ends a text.
    """
    begin, end = frame_of(tokenizer)
    names = ("sep_token", "eos_token") if family == "bert" else ("eos_token", "sep_token")
    last = special_id(tokenizer, *names)
    if last is None:
        raise ValueError(
            f"{tokenizer} has no token that ends a text: name one of its tokens in "
            f'tokenizer_config.json, such as "{names[0]}": "</s>"'
        )
    if family == "bert":
        return [], [last]
    return begin, end if end[-1:] == [last] else [*end, last]
