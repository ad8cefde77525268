"""Text, token ids and labels.

A ``Tokenizer`` wraps Hugging Face's `tokenizers`, which is imported when the first one is made.
``labels`` names every token so that a person can read it: bytes that only together make a
character are shown as that character with a small number (한₁ 한₂ 한₃), spaces as ``␣``.
``words`` groups tokens to the words that a person sees.
"""

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

__all__ = [
    "Reading",
    "StreamDecoder",
    "Tokenizer",
    "Word",
    "as_tokenizer",
    "has_words",
    "printable",
    "read",
    "shortened",
    "visible",
    "words",
]

_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

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


def _byte_of_sign() -> dict[str, int]:
    """The alphabet of byte-level BPE: a visible sign for each byte (GPT-2, 2019)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    signs = {chr(byte): byte for byte in kept}
    signs.update({chr(256 + place): byte for place, byte in enumerate(moved)})
    return signs


_BYTE_OF_SIGN = _byte_of_sign()
_STREAM_CONTEXT = 8  # tokens that are decoded again with the next one; a character has at most 4
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_NO_CHARACTER = "\ufffd"  # what decoders put in the place of bytes that are no character
_VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", _NO_CHARACTER: "\\u{fffd}"}
_TURNS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029}  # change the lines' order


def visible(text: str) -> str:
    """``text`` with its spaces, line ends and invisible characters made visible."""
    return "".join(
        _VISIBLE.get(sign) or (sign if _is_visible(sign) else _escaped(sign)) for sign in text
    )


def printable(text: str) -> str:
    """``text`` without what steers a terminal; spaces, tabs and line ends stay as they are.

    Control characters, the escape that begins a terminal's commands among them, and marks that
    turn the direction of a line are written out: ``\\u{1b}``.
    """
    return "".join(
        _escaped(sign)
        if ord(sign) in _TURNS
        or (sign not in "\n\t" and unicodedata.category(sign) in ("Cc", "Cs"))
        else sign
        for sign in text.replace("\r\n", "\n")
    )


def shortened(text: str, most: int = 40) -> str:
    """``text``; of a longer one than ``most`` signs its beginning and its end: ``abc…xyz``."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def has_words(text: str) -> bool:
    """Whether there is anything in ``text`` that a person sees."""
    return any(_is_visible(sign) for sign in text)


def _escaped(sign: str) -> str:
    return f"\\u{{{ord(sign):x}}}"


@dataclass(frozen=True)
class Word:
    """One word as a person sees it, and the tokens that belong to it.

    Attributes:
        text: the word as the text has it; for a special token its name, e.g. ``[CLS]``.
        start: where it begins in the text (characters).
        end: where it ends in the text, exclusive.
        tokens: positions of its tokens in the ids.
        special: whether it is a special token, which no reader sees.
    """

    text: str
    start: int
    end: int
    tokens: tuple[int, ...]
    special: bool = False


@dataclass(frozen=True)
class Reading:
    """What a tokenizer's ids say: the text, a label for each token, and the words.

    Attributes:
        text: the text.
        labels: a readable name for each token.
        words: the words, in the order of the text.
        spans: where each token begins and ends in the text (characters, end exclusive); tokens
            that only together make a character have the same span.
    """

    text: str
    labels: tuple[str, ...]
    words: tuple[Word, ...]
    spans: tuple[tuple[int, int], ...]


class Tokenizer:
    """Text to token ids and back, with labels that can be read.

    Make one with `from_folder`, `from_gguf` or `as_tokenizer`.

    Args:
        backend: a ``tokenizers.Tokenizer``. Truncation and padding are switched off.
        config: the contents of ``tokenizer_config.json``: names of the special tokens,
            the chat template; written back by `save`.
        special_ids: further ids that are special.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        config: dict[str, Any] | None = None,
        special_ids: Iterable[int] = (),
    ) -> None:
        self.backend = backend
        if backend.truncation is not None or backend.padding is not None:
            from tokenizers import Tokenizer as Backend

            self.backend = Backend.from_str(backend.to_str())  # never change the caller's object
            self.backend.no_truncation()
            self.backend.no_padding()
        self.config = {name: _plain_token(name, value) for name, value in (config or {}).items()}
        named = {name: self._named_id(name) for name in _SPECIAL_NAMES}
        self.bos_id: int | None = named["bos_token"]
        self.eos_id: int | None = named["eos_token"]
        self.pad_id: int | None = named["pad_token"]
        self._added = self.backend.get_added_tokens_decoder()
        added = {id for id, token in self._added.items() if token.special}
        found = {id for id in named.values() if id is not None}
        self.special_ids: frozenset[int] = frozenset({*special_ids, *found, *added})
        unknown = getattr(self.backend.model, "unk_token", None)
        self._unknown_id = self.backend.token_to_id(unknown) if unknown else None

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Tokenizer":
        """Read ``tokenizer.json`` and what lies beside it in a model's folder.

        Raises:
            FileNotFoundError: there is no ``tokenizer.json``.
            ValueError: a file is damaged.
        """
        from tokenizers import Tokenizer as Backend

        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} has no tokenizer.json; save the model's fast tokenizer there "
                "(with transformers: tokenizer.save_pretrained(folder))"
            )
        config: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config.update(_read_json(folder / name))
        template = folder / "chat_template.jinja"
        if template.is_file():
            try:
                config["chat_template"] = template.read_text("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{template} is damaged: {error}") from error
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the only kind that tokenizers raises
            raise ValueError(f"{path} is damaged or no tokenizer: {error}") from error
        return cls(backend, config)

    @classmethod
    def from_gguf(cls, source: Any) -> "Tokenizer":
        """Build the tokenizer that a GGUF file carries.

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
        return cls(backend, config)

    @property
    def vocab_size(self) -> int:
        """How many ids the vocabulary has; a model may have a few more (padding)."""
        return int(self.backend.get_vocab_size())

    @property
    def chat_template(self) -> str | None:
        """The template (Jinja) that turns a conversation into a prompt, if there is one."""
        template = self.config.get("chat_template")
        return template if isinstance(template, str) else None

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of ``text``, with the special tokens that this tokenizer adds by itself."""
        return list(self.backend.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of ``ids``; special tokens are left out unless ``special``.

        Ids outside the vocabulary have no text.
        """
        known = [id for id in map(int, ids) if self._piece(id)]
        return str(self.backend.decode(known, skip_special_tokens=not special))

    def labels(self, ids: Iterable[int]) -> list[str]:
        """A readable name for each id, never with ``�``.

        A character spread over several tokens is shown on each of them, numbered: ``한₁ 한₂``.
        Bytes that are no character are shown as ``\\xED``; ids outside the vocabulary are shown
        as ``‹49153›``.
        """
        ids = [int(id) for id in ids]
        labels = [self._name(id) if self._stands_apart(id) else "" for id in ids]
        for cluster in _clusters(self._characters(ids)):
            sign = visible(cluster.text)
            first, last = cluster.tokens[0], cluster.tokens[-1]
            for number, token in enumerate(range(first, last + 1), start=1):
                labels[token] += sign + (str(number).translate(_SUBSCRIPTS) if last > first else "")
        if self._kind == "wordpiece":
            for place, id in enumerate(ids):
                if not self._stands_apart(id) and self._piece(id).startswith("##"):
                    labels[place] = "##" + labels[place].removeprefix("##")
        return labels

    def stream(self, before: Sequence[int] = ()) -> "StreamDecoder":
        """A decoder that takes ids one at a time and gives text as soon as it is whole.

        Args:
            before: ids that come before, such as a prompt's: a SentencePiece vocabulary drops
                the space of a text's first piece only.
        """
        return StreamDecoder(self, before)

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, as transformers reads them.

        Each file is replaced whole.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.config}
        files = {
            "tokenizer.json": self.backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=2) + "\n",
        }
        for name, text in files.items():
            part = folder / f".{name}.{os.getpid()}"
            try:
                part.write_text(text, "utf-8")
                part.replace(folder / name)
            finally:
                part.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.backend.model).__name__}, {self.vocab_size:,} tokens)"

    # Below: how pieces become characters.

    def _named_id(self, name: str) -> int | None:
        token = self.config.get(name)
        return None if token is None else self.backend.token_to_id(str(token))

    @cached_property
    def _kind(self) -> str:
        """How pieces spell text: "bytes", "metaspace" (▁ is a space), "wordpiece" or "plain"."""
        decoder = self.backend.decoder
        state = decoder.__getstate__().decode() if decoder is not None else ""
        if '"ByteLevel"' in state:
            return "bytes"
        if '"WordPiece"' in state:
            return "wordpiece"
        return "metaspace" if "▁" in state or '"Metaspace"' in state else "plain"

    def _piece(self, id: int) -> str:
        return (self.backend.id_to_token(id) or "") if 0 <= id < 1 << 32 else ""

    def _name(self, id: int) -> str:
        return self._piece(id) or f"‹{id}›"

    def _stands_apart(self, id: int) -> bool:
        """Special tokens and ids without text: they interrupt the flow of bytes."""
        return id in self.special_ids or not self._piece(id)

    def _bytes(self, id: int) -> bytes:
        """The UTF-8 bytes that a token adds to the text."""
        piece = self._piece(id)
        if id in self._added:
            return piece.encode()
        if self._kind == "bytes" and all(sign in _BYTE_OF_SIGN for sign in piece):
            return bytes(_BYTE_OF_SIGN[sign] for sign in piece)
        if self._kind == "metaspace":
            if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                return bytes([int(piece[3:5], 16)])
            return piece.replace("▁", " ").encode()
        return piece.removeprefix("##").encode() if self._kind == "wordpiece" else piece.encode()

    def _characters(self, ids: Sequence[int]) -> Iterator["_Character"]:
        """The characters that ``ids`` spell, each with its first and last token."""
        stream: list[tuple[int, int]] = []  # (byte, token)
        for token, id in enumerate(ids):
            if self._stands_apart(id):
                yield from _decode_bytes(stream)
                stream = []
            else:
                stream += [(byte, token) for byte in self._bytes(id)]
        yield from _decode_bytes(stream)

    def _spans(self, ids: Sequence[int], text: str) -> list[tuple[int, int, bool]] | None:
        """(start, end, special) in ``text`` for each id; None if ``text`` has other ids."""
        encoding = self.backend.encode(text)
        found = list(zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True))
        if encoding.ids == list(ids):
            spans = [(start, end, self._special(id, added)) for id, (start, end), added in found]
        else:  # the same text between other special tokens, e.g. padding or a missing [CLS]
            inner = [(id, span) for id, span, added in found if not self._special(id, added)]
            places = [place for place, id in enumerate(ids) if not self._special(id, 0)]
            if [id for id, _ in inner] != [ids[place] for place in places]:
                return None
            spans = [(0, 0, True)] * len(ids)
            for place, (_, (start, end)) in zip(places, inner, strict=True):
                spans[place] = (start, end, False)
        return _anchor(spans)

    def _rebuilt(self, ids: Sequence[int]) -> str:
        """The text that most likely gave ``ids``."""
        inner = [id for id in ids if self._piece(id) and not self._special(id, 0)]
        text = unicodedata.normalize("NFC", self.decode(inner, special=True))
        if self._kind == "wordpiece":  # a decoder can't know that "don ' t" was "don't"
            text = re.sub(r"(?<=\w) ' (?=(?:s|t|re|ve|m|ll|d)\b)", "'", text)
        return text

    def _special(self, id: int, added: int) -> bool:
        return bool(added) or (id in self.special_ids and id != self._unknown_id)

    def _spelled(self, ids: Sequence[int]) -> tuple[str, list[tuple[int, int, bool]]]:
        """The text that the pieces spell, and the span of each id in it."""
        text = ""
        spans: list[tuple[int, int, bool]] = [
            (-1, -1, self._special(id, 0) or not self._piece(id)) for id in ids
        ]
        for character in _clusters(self._characters(ids)):
            first, last = character.tokens[0], character.tokens[-1]
            new_word = self._kind == "wordpiece" and not self._piece(ids[first]).startswith("##")
            if new_word and text and spans[first][0] < 0:
                text += " "
            for token in range(first, last + 1):
                start = spans[token][0] if spans[token][0] >= 0 else len(text)
                spans[token] = (start, len(text) + len(character.text), False)
            text += character.text
        place = 0
        for token, (start, end, special) in enumerate(spans):
            if start < 0:
                spans[token] = (place, place, special)
            place = max(place, end)
        return text, spans


class StreamDecoder:
    """Turns ids into text one at a time; bytes of an unfinished character wait.

    Bytes that are no character have no text: it never holds ``�``.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""  # what of their text was given out
        self._keep([int(id) for id in before])

    def push(self, id: int) -> str:
        """Take the next id; the text that is now certain, often one piece, sometimes ``""``."""
        self._ids.append(int(id))
        text = self._tokenizer.decode(self._ids)
        whole = text.rstrip(_NO_CHARACTER)  # at the end it may be a character that is not finished
        if whole == text or len(self._ids) > 8 * _STREAM_CONTEXT:
            new = text[len(self._given) :]
            self._keep(self._ids)
        else:
            new = whole[len(self._given) :]
            self._given += new
        return new.replace(_NO_CHARACTER, "")

    def finish(self) -> str:
        """The text that still waits when no more ids come."""
        new = self._tokenizer.decode(self._ids)[len(self._given) :]
        self._keep([])
        return new.replace(_NO_CHARACTER, "")

    def _keep(self, ids: list[int]) -> None:
        # Some context keeps the space that a piece has only after another piece.
        self._ids = ids[-_STREAM_CONTEXT:]
        self._given = self._tokenizer.decode(self._ids)


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """Ours as it is; a ``tokenizers.Tokenizer`` or a fast transformers tokenizer, wrapped.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if hasattr(tokenizer, "id_to_token") and hasattr(tokenizer, "encode"):
        return Tokenizer(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        config = {
            name: str(token)
            for name in _SPECIAL_NAMES
            if (token := getattr(tokenizer, name, None)) is not None
        }
        template = getattr(tokenizer, "chat_template", None)
        if template is not None:
            config["chat_template"] = template
        return Tokenizer(backend, config, getattr(tokenizer, "all_special_ids", ()))
    raise TypeError(
        f"a tokenizer of type {type(tokenizer).__name__} can't be read here; give a "
        "jumok.tokens.Tokenizer, a tokenizers.Tokenizer or a fast transformers tokenizer"
    )


def words(tokenizer: Any, ids: Iterable[int], text: str | None = None) -> list[Word]:
    """The words that ``ids`` spell, in the order of the text.

    A word is a run of letters and digits with inner apostrophes, or one other visible sign.
    A token belongs to the word of its first visible character; a token of spaces only is a
    word of its own, and so is a special token. A sign that has no token of its own joins the
    word whose token covers it.

    Args:
        tokenizer: ours, a ``tokenizers.Tokenizer`` or a transformers tokenizer.
        ids: token ids.
        text: the text they were made from. Without it, the text is rebuilt from the ids.

    Raises:
        ValueError: ``text`` has other ids.
    """
    return list(read(tokenizer, ids, text).words)


def read(tokenizer: Any, ids: Iterable[int], text: str | None = None) -> Reading:
    """Text, labels and words of ``ids``; see `words`."""
    tokenizer = as_tokenizer(tokenizer)
    ids = [int(id) for id in ids]
    if text is not None:
        spans = tokenizer._spans(ids, text)
        if spans is None:
            raise ValueError(
                f"the text {shortened(text, 60)!r} gives other token ids than the {len(ids)} that "
                "were recorded; give the text that the model read, or leave it out"
            )
    else:
        text = tokenizer._rebuilt(ids)
        spans = tokenizer._spans(ids, text)
        if spans is None:
            text, spans = tokenizer._spelled(ids)
    labels = tuple(tokenizer.labels(ids))
    places = tuple((start, end) for start, end, _ in spans)
    return Reading(text, labels, tuple(_group(text, spans, labels)), places)


def _group(text: str, spans: list[tuple[int, int, bool]], labels: Sequence[str]) -> Iterator[Word]:
    """Join tokens to words, in the order of the tokens' words in the text."""
    pieces = list(_split_words(text))
    word_at = {place: number for number, (a, b) in enumerate(pieces) for place in range(a, b)}
    owner: list[int | None] = []
    for start, end, special in spans:
        seen = (word_at[place] for place in range(start, end) if place in word_at)
        owner.append(None if special else next(seen, None))
    owned: dict[int, list[int]] = {}
    for token, number in enumerate(owner):
        if number is not None:
            owned.setdefault(number, []).append(token)
    for token, (start, end, special) in enumerate(spans):
        number = owner[token]
        if number is None:
            shown = text[start:end] if end > start and not special else labels[token]
            yield Word(shown, start, end, (token,), special)
        elif token == owned[number][0]:
            tokens = tuple(owned[number])
            first, last = pieces[number]
            reach = max(spans[place][1] for place in tokens)
            following = number + 1
            while following < len(pieces) and following not in owned:
                if pieces[following][0] >= reach:
                    break
                last = pieces[following][1]
                following += 1
            yield Word(text[first:last], first, last, tokens)


def _split_words(text: str) -> Iterator[tuple[int, int]]:
    """Where words begin and end: runs of letters and digits, or one other visible sign."""
    place, size = 0, len(text)
    while place < size:
        if not _is_visible(text[place]):
            place += 1
            continue
        end = place + 1
        if _is_letter(text[place]):
            while end < size:
                inner = text[end] in "'’" and end + 1 < size and _is_letter(text[end + 1])
                if not (inner or _is_letter(text[end]) or _extends(text[end])):
                    break
                end += 1
        else:
            flag = _is_flag(text[place])
            while end < size:
                joined = text[end - 1] == "\u200d" and _is_visible(text[end])
                pair = flag and end == place + 1 and _is_flag(text[end])
                if not (_extends(text[end]) or joined or pair):
                    break
                end += 1
        yield place, end
        place = end


def _is_letter(sign: str) -> bool:
    return unicodedata.category(sign)[0] in "LN"


def _is_visible(sign: str) -> bool:
    return not sign.isspace() and unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Mn")


def _is_flag(sign: str) -> bool:
    return "\U0001f1e6" <= sign <= "\U0001f1ff"


def _extends(sign: str) -> bool:
    """Marks, joiners, variation selectors and skin tones belong to the sign before them."""
    skin = "\U0001f3fb" <= sign <= "\U0001f3ff"
    return skin or sign == "\u200d" or unicodedata.category(sign)[0] == "M"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found


def _plain_token(name: str, value: Any) -> Any:
    """The text of a special token that a file describes as {"content": "</s>", …}."""
    described = name in _SPECIAL_NAMES and isinstance(value, dict)
    return value.get("content") if described else value


@dataclass
class _Character:
    text: str
    tokens: tuple[int, int]  # first and last token that spell it


def _decode_bytes(stream: list[tuple[int, int]]) -> Iterator[_Character]:
    """UTF-8, a byte at a time; a byte that begins no character is shown as ``\\xED``."""
    place = 0
    while place < len(stream):
        lead = stream[place][0]
        length = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        part = stream[place : place + length]
        try:
            sign = bytes(byte for byte, _ in part).decode()
        except UnicodeDecodeError:
            sign, part = f"\\x{lead:02X}", part[:1]
        yield _Character(sign, (part[0][1], part[-1][1]))
        place += len(part)


def _clusters(characters: Iterable[_Character]) -> Iterator[_Character]:
    """Join letters that were taken apart (Hangul jamo, accents) when that makes one character."""
    waiting: _Character | None = None
    for character in characters:
        if waiting is not None:
            joined = unicodedata.normalize("NFC", waiting.text + character.text)
            if len(joined) == 1:
                tokens = (waiting.tokens[0], character.tokens[1])
                waiting = _Character(joined, tokens)
                continue
            yield waiting
        waiting = character
    if waiting is not None:
        yield waiting


def _anchor(spans: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """Put special tokens, whose span is empty, where they stand: after the token before them."""
    place = 0
    anchored = []
    for start, end, special in spans:
        if special and start == end:
            start = end = place
        anchored.append((start, end, special))
        place = max(place, end)
    return anchored


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
