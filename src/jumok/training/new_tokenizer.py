"""A tokenizer for a run: of bytes, trained on the corpus, or one that is there already."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jumok.tokens import Tokenizer
from jumok.tokens.characters import BYTE_OF_SIGN
from jumok.training.corpus import Corpus, Tell, digest_of
from jumok.training.permutation import hashed

__all__ = ["new_tokenizer"]

_SPECIAL = {
    "gpt": {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|pad|>",
    },
    "bert": {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    "seq2seq": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"},
}
_FRAME = {"bert": "[CLS] $A [SEP]", "seq2seq": "$A </s>"}  # what encode puts around a text
_SAMPLE = 200_000_000  # bytes of the corpus that a tokenizer is trained on at most
_ORIGIN = "tokenizer_origin.json"  # written last: without it the tokenizer isn't whole


def new_tokenizer(
    kind: str,
    corpus: Corpus,
    vocab_size: int,
    folder: Path,
    tell: Tell | None = None,
    *,
    family: str = "gpt",
) -> Tokenizer:
    """The tokenizer of a run.

    Args:
        kind: "bytes" (every byte of UTF-8 is a token), "bpe" (byte-level BPE, trained on the
            corpus, each digit a token of its own; from a corpus above 200 MB on a sample),
            "minilm", "smollm2", or a folder with a ``tokenizer.json``.
        corpus: what to train on.
        vocab_size: of "bpe", special tokens included; a small corpus may give fewer.
        folder: where it is written, as `jumok.load` and transformers read it; read from there
            if it has been made before of the same corpus.
        tell: told how far it is.
        family: "gpt", "bert" or "seq2seq": which special tokens a new one has.

    Raises:
        ValueError: no such kind; a vocabulary that can't be; ``folder`` holds another tokenizer.
        FileNotFoundError: a folder without a tokenizer.
    """
    if kind not in ("bytes", "bpe"):
        tokenizer = _known(kind)
        _keep(tokenizer, folder, {"from": kind})
        return tokenizer
    if family not in _SPECIAL:
        raise ValueError(f"family={family!r}: one of {', '.join(_SPECIAL)}")
    special = list(dict.fromkeys(_SPECIAL[family].values()))
    origin: dict[str, Any] = {"kind": kind, "family": family}
    if kind == "bytes":
        tokenizer = _finished(_bytes(), family)
        _keep(tokenizer, folder, origin)
        return tokenizer
    least = 256 + len(special)
    if vocab_size < least:
        raise ValueError(
            f"vocab_size={vocab_size}: a BPE has at least {least} ids, the 256 bytes and "
            f"{len(special)} special tokens; take more, or the tokenizer bytes"
        )
    origin |= {"vocab_size": vocab_size, "corpus": digest_of(corpus, folder, tell)}
    found = _origin(folder)
    if found is not None:
        if found != origin:
            raise ValueError(_other(folder, found, origin))
        return Tokenizer.from_folder(folder)
    tokenizer = _finished(_bpe(corpus, vocab_size, special, tell), family)
    _keep(tokenizer, folder, origin)
    return tokenizer


def _known(name: str) -> Tokenizer:
    """The tokenizer of an embedded model or of a folder."""
    from jumok.model.zoo import ZOO, model_folder

    if name in ZOO:
        return Tokenizer.from_folder(model_folder(name))
    path = Path(name).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no tokenizer {name!r}: give bytes, bpe, {', '.join(ZOO)}, or a folder "
            f"with a tokenizer.json"
        )
    return Tokenizer.from_folder(path)


def _bytes() -> Any:
    """The tokenizer whose ids are the bytes of the text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.BPE(vocab=dict(BYTE_OF_SIGN), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _bpe(corpus: Corpus, vocab_size: int, special: list[str], tell: Tell | None) -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special),  # added last: bytes and merges come first
        min_frequency=2,
        initial_alphabet=sorted(BYTE_OF_SIGN, key=BYTE_OF_SIGN.__getitem__),
        show_progress=False,
    )
    backend.train_from_iterator(_sample(corpus, tell), trainer)
    return backend


def _sample(corpus: Corpus, tell: Tell | None) -> Iterator[str]:
    """The corpus, or of a large one some fragments from everywhere."""
    share = min(1.0, _SAMPLE / max(1, corpus.n_bytes or 1))
    done = 0
    for number, fragment in enumerate(corpus.fragments()):
        done += fragment.n_bytes
        if share == 1.0 or int(hashed(number)[0]) < share * 2.0**64:
            yield fragment.text
        if tell is not None and number % 16 == 0:
            tell("training the tokenizer", done, corpus.n_bytes)


def _finished(backend: Any, family: str) -> Tokenizer:
    """With the special tokens of a family."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    names = _SPECIAL[family]
    special = list(dict.fromkeys(names.values()))
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    if family in _FRAME:
        frame = _FRAME[family].split()
        used = [(token, backend.token_to_id(token)) for token in frame if token in special]
        backend.post_processor = TemplateProcessing(single=frame, special_tokens=used)
    return Tokenizer(backend, {**names, "clean_up_tokenization_spaces": False})


def _keep(tokenizer: Tokenizer, folder: Path, origin: dict[str, Any]) -> None:
    """Write it, and at last what it was made from, so that half of it is never taken for it."""
    found = _origin(folder)
    if found == origin:
        return
    if found is not None:
        raise ValueError(_other(folder, found, origin))
    tokenizer.save(folder)
    part = folder / f".{_ORIGIN}.{os.getpid()}"
    part.write_text(json.dumps(origin) + "\n", "utf-8")
    part.replace(folder / _ORIGIN)


def _origin(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / _ORIGIN).read_text("utf-8"))
        return dict(found) if (folder / "tokenizer.json").is_file() else None
    except (OSError, ValueError, TypeError):
        return None


def _other(folder: Path, found: dict[str, Any], asked: dict[str, Any]) -> str:
    names = [name for name in {**found, **asked} if found.get(name) != asked.get(name)]
    changes = ", ".join(
        "the corpus has changed"
        if name == "corpus" and name in found and name in asked
        else f"{name} was {found.get(name)!r}, is {asked.get(name)!r}"
        for name in names
        if name != "corpus" or (name in found and name in asked)
    )
    return (
        f"{folder} holds the tokenizer of another run: {changes}. Give another folder, or delete "
        f"this one to begin anew"
    )
