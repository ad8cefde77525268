"""What a model family is: tables and functions that map its checkpoints to ours and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jumok.model.config import Config, EncoderDecoderConfig, FeedForwardKind
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.families.settings import Settings
from jumok.model.transformer import Decoder, Encoder

__all__ = [
    "ACTIVATIONS",
    "ACTIVATION_NAMES",
    "AnyConfig",
    "Family",
    "Model",
    "Piece",
    "both",
    "read_ids",
    "special_ids",
    "stack",
    "suppressed_ids",
    "write_special_ids",
]


Model = Decoder | Encoder | EncoderDecoder
AnyConfig = Any  # Config or EncoderDecoderConfig: each family reads and writes its own kind


@dataclass(frozen=True)
class Piece:
    """Where one of our tensors comes from.

    Args:
        theirs: names of the tensors that it is stacked of, along the output dimension.
        flipped: theirs is (in, out), as in GPT-2, and ours (out, in).
        as_row: theirs is (1, N), and ours (N,).
    """

    theirs: tuple[str, ...]
    flipped: bool = False
    as_row: bool = False


@dataclass(frozen=True)
class Family:
    """One published architecture.

    Args:
        name: ``model_type`` of its config.json.
        architecture: name of the transformers class that reads what we write.
        model: our class.
        prefix: beginning of their names that may be there or not.
        names: our names → where they come from.
        read: settings → `Config`, or `EncoderDecoderConfig` for an `EncoderDecoder`.
        write: the configuration → settings, as far as the family can express it.
        without_weights: endings of tensors that hold no weights.
        heads: beginnings (without prefix) of tensors for tasks that our class doesn't do.
        varying: further names, which depend on the configuration.
        copies: names of tensors (without prefix) that repeat another one → that one, where both
            sides of an encoder-decoder share their embedding.
        masked_architecture: transformers' class for an encoder with its masked-token head.
        masked_names: as ``names``, for that head.
        masked_activation: the head's activation; `None`: the model's own.
    """

    name: str
    architecture: str
    model: type[Decoder] | type[Encoder] | type[EncoderDecoder]
    prefix: str
    names: Mapping[str, Piece]
    read: Callable[[Settings], AnyConfig]
    write: Callable[[AnyConfig], dict[str, Any]]
    without_weights: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    varying: Callable[[AnyConfig], Mapping[str, Piece]] = lambda config: {}
    copies: Mapping[str, str] = field(default_factory=dict)
    masked_architecture: str = ""
    masked_names: Mapping[str, Piece] = field(default_factory=dict)
    masked_activation: FeedForwardKind | None = None

    def names_for(self, config: AnyConfig) -> dict[str, Piece]:
        """All of our names → where they come from."""
        return {**self.names, **self.masked_names, **self.varying(config)}

    def expresses(self, config: Config | EncoderDecoderConfig) -> bool:
        """Whether this family can say all that ``config`` says."""
        return self.differences(config) == {}

    def differences(
        self, config: Config | EncoderDecoderConfig
    ) -> dict[str, tuple[Any, Any]] | None:
        """What this family cannot say of ``config``.

        Returns:
            The name of each field → (its value, what would be read back); of an encoder-decoder
            ``decoder.norm`` and the like. `None` if it is of another kind altogether.
        """
        try:
            said = self.read(Settings(self.write(config), "config"))
        except (ValueError, TypeError, AttributeError):
            return None
        if isinstance(config, Config):  # these are told by their tensors, or by another file
            config = replace(config, pooler=False, masked_head=False)
        else:
            if "head_bias" in self.names:
                config = replace(config, head_bias=said.head_bias)
            unused = {name: getattr(said.encoder, name) for name in _OF_TARGETS}
            config = replace(config, encoder=replace(config.encoder, **unused))
        return dict(_differences(config, said))


# What is asked of the decoder's side alone.
_OF_TARGETS = ("bos_id", "eos_ids", "pad_id", "suppressed_ids", "tied_head")


def _differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    for each in fields(one):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(mine, Config) and isinstance(theirs, Config):
            yield from _differences(mine, theirs, f"{path}{each.name}.")
        elif mine != theirs:
            yield f"{path}{each.name}", (mine, theirs)


# What several families share.

ACTIVATIONS: dict[str, FeedForwardKind] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def special_ids(settings: Settings, pad_id: int | None = None) -> dict[str, Any]:
    settings.take("eos_token_id", None)
    settings.take("bos_token_id", None)
    bos = read_ids(settings.values, "bos_token_id", settings.source)
    return {
        "bos_id": next(iter(bos), None),
        "eos_ids": read_ids(settings.values, "eos_token_id", settings.source),
        "pad_id": settings.take_or_none("pad_token_id", pad_id),
        "suppressed_ids": suppressed_ids(settings.values),
    }


def read_ids(values: Mapping[str, Any], key: str, source: str) -> tuple[int, ...]:
    """The id, or the ids, under ``key``; none if it is not there."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise ValueError(f"{source}: {key} = {value!r}, where an id or a list of ids is due")
    return tuple(ids)


def suppressed_ids(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that a generation must never choose (of ``bad_words_ids`` those of one token)."""
    words = [word[0] for word in values.get("bad_words_ids") or () if len(word) == 1]
    return tuple(dict.fromkeys([*words, *(values.get("suppress_tokens") or ())]))


def write_special_ids(config: Config) -> dict[str, Any]:
    eos: Any = list(config.eos_ids) if len(config.eos_ids) > 1 else None
    if len(config.eos_ids) == 1:
        eos = config.eos_ids[0]
    ids = {"bos_token_id": config.bos_id, "eos_token_id": eos, "pad_token_id": config.pad_id}
    banned = [[token] for token in config.suppressed_ids]
    return {**ids, **({"bad_words_ids": banned} if banned else {})}


def stack(*theirs: str) -> Piece:
    return Piece(theirs)


def both(ours: str, *theirs: str, flipped: bool = False) -> dict[str, Piece]:
    """The weight and the bias of one map."""
    return {
        f"{ours}.weight": Piece(tuple(f"{name}.weight" for name in theirs), flipped),
        f"{ours}.bias": Piece(tuple(f"{name}.bias" for name in theirs)),
    }
