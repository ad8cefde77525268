"""The vocabularies of Marian's translation models: SentencePiece files and ``vocab.json``.

The source is cut by ``source.spm``, the target by ``target.spm``; each piece has its number in
``vocab.json``, which both languages share unless there is a ``target_vocab.json``. A SentencePiece
file is a protocol buffer:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

__all__ = ["MARIAN_FILES", "read_marian_target", "read_marian_vocabulary"]

MARIAN_FILES = ("source.spm", "vocab.json")
_NEVER = -1e5  # below any score of a piece: taken only where nothing else fits
_UNIGRAM = 1


def read_marian_target(folder: Path) -> tuple["tokenizers.Tokenizer", dict[str, Any]] | None:
    """As `read_marian_vocabulary`, for the language that is written; `None` without its files."""
    if not (folder / "target.spm").is_file():
        return None
    separate = (folder / "target_vocab.json").is_file()
    return read_marian_vocabulary(
        folder, "target.spm", "target_vocab.json" if separate else "vocab.json"
    )


def read_marian_vocabulary(
    folder: Path, pieces: str = "source.spm", numbers: str = "vocab.json"
) -> tuple["tokenizers.Tokenizer", dict[str, Any]]:
    """The tokenizer of a Marian folder, and its ``tokenizer_config.json``.

    Args:
        folder: of the model.
        pieces: the SentencePiece file.
        numbers: the file with the ids.

    Raises:
        ValueError: a file is damaged, or of a kind that Marian doesn't have.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    path = folder / numbers
    try:
        ids = json.loads(path.read_text("utf-8"))
        order = sorted(ids, key=ids.get)
        if [ids[piece] for piece in order] != list(range(len(order))):
            raise ValueError("its numbers are not 0, 1, 2, …")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    missing = [token for token in ("<unk>", "</s>", "<pad>") if token not in ids]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}")
    scores, rules = _read_pieces(folder / pieces)
    backend = Tokenizer(
        models.Unigram([(piece, scores.get(piece, _NEVER)) for piece in order], ids["<unk>"])
    )
    steps = [normalizers.Precompiled(rules)] if rules else []
    backend.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    special = [piece for piece in order if piece.startswith(">>") and piece.endswith("<<")]
    backend.add_special_tokens(
        [AddedToken(token, normalized=False) for token in ("<unk>", "</s>", "<pad>", *special)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", ids["</s>"])]
    )
    names = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    return backend, {"tokenizer_class": "PreTrainedTokenizerFast", **names}


def _read_pieces(path: Path) -> tuple[dict[str, float], bytes]:
    """The pieces of a SentencePiece file with their scores, and its normalisation rules."""
    scores: dict[str, float] = {}
    rules, kind = b"", _UNIGRAM
    try:
        for field, value in _fields(path.read_bytes()):
            if field == 1:  # a piece: its text and its score
                part = dict(_fields(value))
                scores[part[1].decode("utf-8")] = struct.unpack("<f", part[2])[0]
            elif field == 2:  # how it was trained
                kind = dict(_fields(value)).get(3, _UNIGRAM)
            elif field == 3:  # how texts are normalised
                rules = dict(_fields(value)).get(2, b"")
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise ValueError(f"{path} is damaged or no SentencePiece file") from error
    if not scores or kind != _UNIGRAM:
        raise ValueError(f"{path} holds no unigram vocabulary, which Marian's models have")
    return scores, rules


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protocol buffer; bytes where it is no number."""
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while place < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            yield key >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"field of kind {kind}")
            size = number()
        if place + size > len(data):
            raise ValueError("cut off")
        yield key >> 3, data[place : place + size]
        place += size
