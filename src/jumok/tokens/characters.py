"""Bytes and pieces of a vocabulary as the characters that they spell."""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

NO_CHARACTER = "\ufffd"
"""What decoders put in the place of bytes that are no character."""


def _byte_of_sign() -> dict[str, int]:
    """The alphabet of byte-level BPE: a visible sign for each byte (GPT-2, 2019)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    signs = {chr(byte): byte for byte in kept}
    signs.update({chr(256 + place): byte for place, byte in enumerate(moved)})
    return signs


BYTE_OF_SIGN = _byte_of_sign()


@dataclass
class Character:
    text: str
    tokens: tuple[int, int]  # first and last token that spell it


def decode_bytes(stream: list[tuple[int, int]]) -> Iterator[Character]:
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
        yield Character(sign, (part[0][1], part[-1][1]))
        place += len(part)


def clusters(characters: Iterable[Character]) -> Iterator[Character]:
    """Join letters that were taken apart (Hangul jamo, accents) when that makes one character."""
    waiting: Character | None = None
    for character in characters:
        if waiting is not None:
            joined = unicodedata.normalize("NFC", waiting.text + character.text)
            if len(joined) == 1:
                tokens = (waiting.tokens[0], character.tokens[1])
                waiting = Character(joined, tokens)
                continue
            yield waiting
        waiting = character
    if waiting is not None:
        yield waiting
