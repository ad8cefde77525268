"""Mask rules as data: the arrays they hold, and how they are written down.

One table names every rule with what it is made of, so that each walk over a rule (moving its
arrays, writing it to a file, reading it back) is one short function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jumok.lens.call import Array
from jumok.masks import (
    Both,
    Causal,
    Chunked,
    Dense,
    Everything,
    Mask,
    Packed,
    Padding,
    Prefix,
    Spans,
    Steps,
    Window,
)
from jumok.masks.tail import Tail

_RULES: dict[str, tuple[type[Mask], tuple[str, ...]]] = {
    "everything": (Everything, ()),
    "causal": (Causal, ("offset",)),
    "window": (Window, ("size", "ahead", "offset")),
    "chunked": (Chunked, ("size", "offset")),
    "prefix": (Prefix, ("length", "offset")),
    "padding": (Padding, ("visible",)),
    "dense": (Dense, ("visible",)),
    "spans": (Spans, ("start", "stop")),
    "packed": (Packed, ("documents", "offset")),
    "both": (Both, ("rules",)),
    "steps": (Steps, ("parts",)),
    "tail": (Tail, ("first", "among")),
}
_NAMES = {kind: name for name, (kind, _) in _RULES.items()}


def _parts(mask: Mask) -> tuple[str, dict[str, Any]]:
    name = _NAMES.get(type(mask))
    if name is None:
        raise TypeError(
            f"a mask rule of type {type(mask).__name__} cannot be recorded; use the rules of "
            f"jumok.masks, or Dense(rule.dense(…))"
        )
    return name, {part: getattr(mask, part) for part in _RULES[name][1]}


def mask_arrays(mask: Mask | None) -> Iterator[Array]:
    """The arrays that a rule holds."""

    def visit(value: Any) -> Iterator[Array]:
        if isinstance(value, Mask):
            for part in _parts(value)[1].values():
                yield from visit(part)
        elif isinstance(value, tuple):
            for part in value:
                yield from visit(part)
        elif hasattr(value, "shape"):
            yield value

    return visit(mask)


def with_arrays(mask: Mask, change: Callable[[Array], Array]) -> Mask:
    """The same rule with other arrays; a rule without arrays is given back as it is."""
    if next(mask_arrays(mask), None) is None:
        return mask

    def visit(value: Any) -> Any:
        if isinstance(value, Mask):
            return with_arrays(value, change)
        if isinstance(value, tuple):
            return tuple(visit(part) for part in value)
        return change(value) if hasattr(value, "shape") else value

    name, parts = _parts(mask)
    return _RULES[name][0](**{part: visit(value) for part, value in parts.items()})


def written_mask(mask: Mask | None, name: str, add: Callable[[str, Array], str]) -> Any:
    """A rule as JSON; its arrays go to `add`, which answers with the name to write down."""

    def visit(value: Any, name: str) -> Any:
        if isinstance(value, Mask):
            rule, parts = _parts(value)
            inside = {part: visit(found, f"{name}.{part}") for part, found in parts.items()}
            return {"rule": rule, **inside}
        if isinstance(value, tuple):
            return [visit(part, f"{name}.{number}") for number, part in enumerate(value)]
        return add(name, value) if hasattr(value, "shape") else value

    return None if isinstance(mask, Everything) else visit(mask, name)


def read_written_mask(tree: Any, array: Callable[[str], Array]) -> Mask | None:
    """A rule from what `written_mask` made of it; `array` gives the array of a name.

    Raises:
        KeyError: an unknown rule, or a part that is missing.
    """

    def visit(value: Any) -> Any:
        if isinstance(value, dict):
            kind, parts = _RULES[value["rule"]]
            return kind(**{part: visit(value[part]) for part in parts})
        if isinstance(value, list):
            return tuple(visit(part) for part in value)
        return array(value) if isinstance(value, str) else value

    found = visit(tree)
    if found is not None and not isinstance(found, Mask):
        raise TypeError(f"a mask is no rule: {tree!r}")
    return found
