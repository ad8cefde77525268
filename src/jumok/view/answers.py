"""What the page gets for a question: a JSON object and arrays of numbers, or a word why not.

``ui/QUESTIONS.md`` says what each answer holds, and how it goes over the wire.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Answer", "Unanswered", "described", "plain"]

Numbers = np.ndarray[Any, np.dtype[Any]]

_TYPES = {"float32": "<f4", "int32": "<i4"}


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    Attributes:
        fields: what goes as JSON: strings, numbers, lists and dicts only.
        arrays: name → float32 or int32.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Numbers] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def media_type(self) -> str:
        """What `to_bytes` gives."""
        return "application/octet-stream" if self.arrays else "application/json"

    def to_bytes(self) -> bytes:
        """JSON alone, or its length, the JSON and then the arrays."""
        if not self.arrays:
            return json_bytes(self.fields)
        head = json_bytes({"fields": self.fields, "arrays": described(self.arrays)})
        head += b" " * (-len(head) % 4)
        parts = [np.ascontiguousarray(a, _TYPES[a.dtype.name]) for a in self.arrays.values()]
        return b"".join([len(head).to_bytes(4, "little"), head, *(p.tobytes() for p in parts)])


class Unanswered(Exception):
    """A question that is not answered.

    Args:
        code: one of those in ``ui/QUESTIONS.md``.
        text: for the person who reads the page.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def to_dict(self) -> dict[str, str]:
        """As JSON."""
        return {"error": str(self), "code": self.code}


def described(arrays: Mapping[str, Numbers]) -> list[dict[str, Any]]:
    """Name, shape and type of each array."""
    return [
        {"name": name, "shape": list(array.shape), "type": array.dtype.name}
        for name, array in arrays.items()
    ]


def json_bytes(value: Any) -> bytes:
    """JSON in UTF-8; lone surrogates, which UTF-8 has not, as question marks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's, and `None` for those that are not finite."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
