"""The vocabularies that GGUF files carry, as tokenizers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

# How byte-level vocabularies cut text before merging, by the name a GGUF file gives it.
# The names and rules are those of the GGUF format (tokenizer.ggml.pre).
_GPT2_NAMES = {"gpt-2", "gpt2", "default", "mpt", "olmo", "jais", "trillion", "granite-docling"}

_DIGIT_NAMES = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen", "stablelm2"], _ENDINGS + _REST),
    **dict.fromkeys(
        ["llama-bpe", "llama3", "llama-v3", "smaug-bpe", "falcon3"], _ENDINGS + "{1,3}" + _REST
    ),
}
_LLAMA3_NAMES = {"llama-bpe", "llama3", "llama-v3", "falcon3"}  # whole words before merges; bos


def read_vocabulary(source: Any) -> tuple["tokenizers.Tokenizer", dict[str, Any]]:
    """The tokenizer that a GGUF file carries, and its ``tokenizer_config.json``.

    Args:
        source: the file's path, or an open ``gguf.GGUFReader``.

    Raises:
        ValueError: the file has no vocabulary, or one of a kind that is not known here.
    """
    if isinstance(source, (str, Path)):
        from gguf import GGUFReader

        source = GGUFReader(source)
    fields = {
        name.removeprefix("tokenizer.ggml."): entry
        for name, entry in source.fields.items()
        if name.startswith("tokenizer.")
    }
    values = {name: entry.contents() for name, entry in fields.items()}
    tokens: list[str] = values.get("tokens") or []
    if not tokens:
        raise ValueError("this GGUF file carries no vocabulary (tokenizer.ggml.tokens)")
    model = values.get("model")
    if model == "gpt2":
        backend, add_bos = _byte_level_backend(values, tokens)
    elif model == "llama":
        backend, add_bos = _sentencepiece_backend(values, tokens)
    else:
        raise ValueError(
            f"the vocabulary of this GGUF file is of the kind {model!r}; "
            "known are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)"
        )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for name, key in keys.items():
        place = values.get(f"{key}_token_id")
        if place is not None and 0 <= place < len(tokens):
            config[f"{name}_token"] = tokens[place]
    if "tokenizer.chat_template" in values:
        config["chat_template"] = values["tokenizer.chat_template"]
    kinds = values.get("token_type") or [1] * len(tokens)
    _add_special(backend, tokens, kinds)
    begin = tokens[values["bos_token_id"]] if values.get("add_bos_token", add_bos) else None
    finish = tokens[values["eos_token_id"]] if values.get("add_eos_token", False) else None
    _add_ends(backend, begin, finish)
    return backend, config


def _byte_level_backend(
    values: dict[str, Any], tokens: list[str]
) -> tuple["tokenizers.Tokenizer", bool]:
    """Byte-level BPE from a GGUF file's tokens and merges."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    name = values.get("pre", "default")
    merges = [tuple(merge.split(" ", 1)) for merge in values.get("merges", [])]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split: pre_tokenizers.PreTokenizer
    if name in _GPT2_NAMES:
        split = whole
    elif name in _DIGIT_NAMES:
        split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    elif name in _PATTERNS:
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PATTERNS[name]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        known = ", ".join(sorted({*_GPT2_NAMES, *_DIGIT_NAMES, *_PATTERNS}))
        raise ValueError(
            f"this GGUF file cuts text by the rule {name!r} (tokenizer.ggml.pre); known: {known}"
        )
    llama3 = name in _LLAMA3_NAMES
    vocabulary = {token: id for id, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=llama3))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return backend, llama3


def _sentencepiece_backend(
    values: dict[str, Any], tokens: list[str]
) -> tuple["tokenizers.Tokenizer", bool]:
    """SentencePiece BPE from a GGUF file's tokens and scores: better scores merge first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores: list[float] = values.get("scores") or []
    if len(scores) != len(tokens):
        raise ValueError(
            f"this GGUF file has {len(tokens)} tokens but {len(scores)} scores; "
            "a SentencePiece vocabulary needs one for each"
        )
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = [
        (scores[id], vocabulary[left], vocabulary[right], left, right)
        for id, token in enumerate(tokens)
        for cut in range(1, len(token))
        if (left := token[:cut]) in vocabulary and (right := token[cut:]) in vocabulary
    ]
    merges.sort(key=lambda merge: (-merge[0], merge[1], merge[2]))
    unknown = values.get("unknown_token_id")
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for *_, left, right in merges],
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(values.get("add_space_prefix", True))
    spaces = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend, True


def _add_special(backend: "tokenizers.Tokenizer", tokens: list[str], kinds: list[int]) -> None:
    """GGUF token types: 3 is a control token, 4 one that the user defined (not special)."""
    from tokenizers import AddedToken

    for kind, special in ((3, True), (4, False)):
        found = [token for token, other in zip(tokens, kinds, strict=True) if other == kind]
        added = [AddedToken(token, special=special, normalized=False) for token in found]
        (backend.add_special_tokens if special else backend.add_tokens)(added)


def _add_ends(backend: "tokenizers.Tokenizer", begin: str | None, finish: str | None) -> None:
    """Let the tokenizer put its own tokens before and after a text."""
    from tokenizers import processors

    ends = [token for token in (begin, finish) if token is not None]
    if ends:
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join([*([begin] if begin else []), "$A", *([finish] if finish else [])]),
            special_tokens=[(token, backend.token_to_id(token)) for token in set(ends)],
        )
