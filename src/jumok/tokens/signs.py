"""What a person sees of a text: letters, marks, and signs that must be made visible."""

import unicodedata

from jumok.tokens.characters import NO_CHARACTER

__all__ = ["has_words", "printable", "shortened", "visible"]

_VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", NO_CHARACTER: "\\u{fffd}"}
_TURNS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029}  # change the lines' order


def visible(text: str) -> str:
    """``text`` with its spaces, line ends and invisible characters made visible."""
    return "".join(
        _VISIBLE.get(sign) or (sign if is_visible(sign) else _escaped(sign)) for sign in text
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
    return any(is_visible(sign) for sign in text)


def _escaped(sign: str) -> str:
    return f"\\u{{{ord(sign):x}}}"


def is_letter(sign: str) -> bool:
    return unicodedata.category(sign)[0] in "LN"


def is_visible(sign: str) -> bool:
    return not sign.isspace() and unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Mn")


def is_flag(sign: str) -> bool:
    return "\U0001f1e6" <= sign <= "\U0001f1ff"


def extends(sign: str) -> bool:
    """Marks, joiners, variation selectors and skin tones belong to the sign before them."""
    skin = "\U0001f3fb" <= sign <= "\U0001f3ff"
    return skin or sign == "\u200d" or unicodedata.category(sign)[0] == "M"
