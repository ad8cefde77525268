"""Fonts that have the letters of a text, and matplotlib without its repeated warnings."""

import contextlib
import functools
import logging
import unicodedata
import warnings
from collections.abc import Iterator

_FALLBACKS = (
    "Noto Sans CJK KR",
    "Noto Sans CJK JP",
    "Noto Sans KR",
    "Apple SD Gothic Neo",
    "Malgun Gothic",
    "NanumGothic",
    "Source Han Sans",
    "Microsoft YaHei",
    "PingFang SC",
    "Noto Sans Symbols 2",
    "Noto Emoji",
    "Segoe UI Emoji",
    "Segoe UI Symbol",
    "Arial Unicode MS",
)


def font_family(text: str) -> list[str]:
    """Font families that together have every sign of ``text``; warns of signs none has."""
    wanted = {sign for sign in text if not sign.isspace() and not _is_joiner(sign)}
    with quietly():
        family, missing = _families(wanted)
        if missing and _add_new_fonts():
            family, missing = _families(wanted)
    if missing:
        signs = " ".join(sorted(missing)[:10])
        warnings.warn(
            f"no installed font can draw {signs}: boxes stand in their place; install one that "
            "can, such as Noto Sans CJK or Noto Emoji",
            stacklevel=2,
        )
    return family


def _families(wanted: set[str]) -> tuple[list[str], set[str]]:
    """The families that have the signs, and the signs that none has."""
    from matplotlib.font_manager import fontManager

    family = ["DejaVu Sans"]
    missing = wanted - _signs_of("DejaVu Sans")
    installed = {entry.name for entry in fontManager.ttflist}
    for name in [*_FALLBACKS, *sorted(installed - set(_FALLBACKS))]:
        if not missing:
            break
        if name in installed and missing & _signs_of(name):
            family.append(name)
            missing -= _signs_of(name)
    return family, missing


def _add_new_fonts() -> bool:
    """Make known what was installed after matplotlib wrote its list of fonts."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.fname for entry in fontManager.ttflist}
    added = [_add_font(path) for path in findSystemFonts() if path not in known]
    return any(added)


@functools.cache
def _add_font(path: str) -> bool:
    from matplotlib.font_manager import fontManager

    try:
        fontManager.addfont(path)
    except (OSError, RuntimeError, ValueError):  # a kind of font that matplotlib can't read
        return False
    return True


@functools.cache
def _signs_of(name: str) -> frozenset[str]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        path = findfont(FontProperties(family=name), fallback_to_default=False)
        return frozenset(chr(code) for code in get_font(path).get_charmap())
    except (ValueError, RuntimeError, OSError):  # a broken or vanished font file
        return frozenset()


def _is_joiner(sign: str) -> bool:
    return unicodedata.category(sign) in ("Cf", "Mn", "Cc")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """matplotlib names each missing sign and font again and again; `font_family` said it once."""
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s)Glyph .* missing")
            yield
    finally:
        logger.setLevel(level)
