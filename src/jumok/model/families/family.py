"""What a model family is: tables and functions that map its checkpoints to ours and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jumok.model.config import Config, FeedForwardKind
from jumok.model.families.settings import Settings
from jumok.model.transformer import Decoder, Encoder

__all__ = [
    "GELUS",
    "GELU_NAMES",
    "Family",
    "Piece",
    "both",
    "special_ids",
    "stack",
    "write_special_ids",
]


@dataclass(frozen=True)
class Piece:
    """Where one of our tensors comes from.

    Args:
        theirs: names of the tensors that it is stacked of, along the output dimension.
        flipped: theirs is (in, out), as in GPT-2, and ours (out, in).
    """

    theirs: tuple[str, ...]
    flipped: bool = False


@dataclass(frozen=True)
class Family:
    """One published architecture.

    Args:
        name: ``model_type`` of its config.json.
        architecture: name of the transformers class that reads what we write.
        model: our class.
        prefix: beginning of their names that may be there or not.
        names: our names → where they come from.
        read: settings → `Config`.
        write: `Config` → settings, as far as the family can express it.
        without_weights: endings of tensors that hold no weights.
        heads: beginnings (without prefix) of tensors for tasks that our class doesn't do.
    """

    name: str
    architecture: str
    model: type[Decoder] | type[Encoder]
    prefix: str
    names: Mapping[str, Piece]
    read: Callable[[Settings], Config]
    write: Callable[[Config], dict[str, Any]]
    without_weights: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    def expresses(self, config: Config) -> bool:
        """Whether this family can say all that ``config`` says."""
        try:
            said = self.read(Settings(self.write(config), "config"))
        except ValueError:
            return False
        return said == replace(config, pooler=False)  # the pooler is told by its tensors


# What several families share.

GELUS: dict[str, FeedForwardKind] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
GELU_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


def special_ids(settings: Settings, pad_id: int | None = None) -> dict[str, Any]:
    eos = settings.take("eos_token_id", None)
    return {
        "bos_id": settings.take("bos_token_id", None),
        "eos_ids": () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        "pad_id": settings.take("pad_token_id", pad_id),
    }


def write_special_ids(config: Config) -> dict[str, Any]:
    eos: Any = list(config.eos_ids) if len(config.eos_ids) > 1 else None
    if len(config.eos_ids) == 1:
        eos = config.eos_ids[0]
    return {"bos_token_id": config.bos_id, "eos_token_id": eos, "pad_token_id": config.pad_id}


def stack(*theirs: str) -> Piece:
    return Piece(theirs)


def both(ours: str, *theirs: str, flipped: bool = False) -> dict[str, Piece]:
    """The weight and the bias of one map."""
    return {
        f"{ours}.weight": Piece(tuple(f"{name}.weight" for name in theirs), flipped),
        f"{ours}.bias": Piece(tuple(f"{name}.bias" for name in theirs)),
    }
