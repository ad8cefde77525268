"""Small tokenizers for tests, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from jumok.tokens.characters import BYTE_OF_SIGN


def byte_level(merges: list[tuple[str, str]] | None = None) -> Any:
    """Byte-level BPE with the 256 bytes and a few merges; "<end>" is special."""
    signs = list(BYTE_OF_SIGN) + [left + right for left, right in merges or []]
    vocabulary = {sign: id for id, sign in enumerate(signs)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges or []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return backend


def word_piece() -> Any:
    """A small BERT tokenizer, lower case, Hangul taken apart into jamo."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "an", "apple", "don", "'", "t", ".", "##s"]
    for sign in "사과나한글":
        for jamo in normalizers.NFD().normalize_str(sign):
            vocabulary += [jamo, f"##{jamo}"]
    ids = {piece: id for id, piece in enumerate(dict.fromkeys(vocabulary))}
    backend = Backend(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return backend


def gguf_file(path: Path, tokens: list[str], **fields: Any) -> Path:
    """A GGUF file that holds nothing but a vocabulary."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(tokens)
    writer.add_tokenizer_model(fields.pop("model"))
    if "pre" in fields:
        writer.add_tokenizer_pre(fields.pop("pre"))
    if "merges" in fields:
        writer.add_token_merges(fields.pop("merges"))
    if "scores" in fields:
        writer.add_token_scores(fields.pop("scores"))
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
