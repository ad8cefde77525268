"""Text to token ids and back, with a readable label for each token."""

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jumok.tokens.characters import BYTE_OF_SIGN, Character, clusters, decode_bytes
from jumok.tokens.gguf_vocabulary import read_vocabulary
from jumok.tokens.signs import shortened, visible
from jumok.tokens.stream import StreamDecoder

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Tokenizer", "as_tokenizer"]

_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

_TARGET = "target"  # the folder of a target's own tokenizer

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class Tokenizer:
    """Text to token ids and back, with labels that can be read.

    Make one with `from_folder`, `from_gguf` or `as_tokenizer`.

    Args:
        backend: a ``tokenizers.Tokenizer``. Truncation and padding are switched off.
        config: the contents of ``tokenizer_config.json``: names of the special tokens,
            the chat template; written back by `save`.
        special_ids: further ids that are special.

    Attributes:
        target: the tokenizer of what an encoder-decoder writes: itself, unless source and target
            are cut differently (Marian).
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
        self.target: Tokenizer = self

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
        found = cls(backend, config)
        if (folder / _TARGET / "tokenizer.json").is_file():
            found.target = cls.from_folder(folder / _TARGET)
        return found

    @classmethod
    def from_gguf(cls, source: Any) -> "Tokenizer":
        """Build the tokenizer that a GGUF file carries.

        Args:
            source: the file's path, or an open ``gguf.GGUFReader``.

        Raises:
            ValueError: the file has no vocabulary, or one of a kind that is not known here.
        """
        return cls(*read_vocabulary(source))

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
        for cluster in clusters(self._characters(ids)):
            sign = visible(cluster.text)
            first, last = cluster.tokens[0], cluster.tokens[-1]
            for number, token in enumerate(range(first, last + 1), start=1):
                labels[token] += sign + (str(number).translate(_SUBSCRIPTS) if last > first else "")
        if self._kind == "wordpiece":
            for place, id in enumerate(ids):
                if not self._stands_apart(id) and self._piece(id).startswith("##"):
                    labels[place] = "##" + labels[place].removeprefix("##")
        return labels

    def located(
        self, ids: Sequence[int], text: str | None = None
    ) -> tuple[str, list[tuple[int, int, bool]]]:
        """The text of ``ids``, and where each of them stands in it.

        Args:
            ids: token ids.
            text: the text they were made from. Without it, the text is rebuilt from the ids.

        Returns:
            The text, and for each id (start, end, special): characters, end exclusive, and
            whether it is a special token, which no reader sees. Tokens that only together make
            a character have the same span.

        Raises:
            ValueError: ``text`` has other ids.
        """
        if text is not None:
            spans = self._spans(ids, text)
            if spans is None:
                raise ValueError(
                    f"the text {shortened(text, 60)!r} gives other token ids than the {len(ids)} "
                    "that were recorded; give the text that the model read, or leave it out"
                )
            return text, spans
        text = self._rebuilt(ids)
        spans = self._spans(ids, text)
        return self._spelled(ids) if spans is None else (text, spans)

    def stream(self, before: Sequence[int] = ()) -> StreamDecoder:
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
        if self.target is not self:
            self.target.save(folder / _TARGET)

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
        if self._kind == "bytes" and all(sign in BYTE_OF_SIGN for sign in piece):
            return bytes(BYTE_OF_SIGN[sign] for sign in piece)
        if self._kind == "metaspace":
            if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                return bytes([int(piece[3:5], 16)])
            return piece.replace("▁", " ").encode()
        return piece.removeprefix("##").encode() if self._kind == "wordpiece" else piece.encode()

    def _characters(self, ids: Sequence[int]) -> Iterator[Character]:
        """The characters that ``ids`` spell, each with its first and last token."""
        stream: list[tuple[int, int]] = []  # (byte, token)
        for token, id in enumerate(ids):
            if self._stands_apart(id):
                yield from decode_bytes(stream)
                stream = []
            else:
                stream += [(byte, token) for byte in self._bytes(id)]
        yield from decode_bytes(stream)

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
        for character in clusters(self._characters(ids)):
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
