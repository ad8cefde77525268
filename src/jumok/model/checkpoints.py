"""Checkpoints on disk ↔ our modules: Hugging Face folders of safetensors.

Tensors are mapped by name with the table of the model's family (`jumok.model.families`); every
tensor of the file must be used, known to hold no weights, or named in a warning, and every
parameter of the model must be found. Weights are memory-mapped where nothing has to be changed.
Pickle is never loaded.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from jumok.model.config import Config, EncoderDecoderConfig
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.families import FAMILIES, Family, Model, NotSupportedError, Piece, Settings
from jumok.model.families.family import read_ids, suppressed_ids
from jumok.model.transformer import Decoder, Encoder
from jumok.model.weight_files import open_safetensors, read_json, replace_file, weight_files

__all__ = ["Model", "build", "published_rows", "read_folder", "write_folder"]

AnyConfig = Config | EncoderDecoderConfig
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Tensors = Mapping[str, Callable[[], Tensor]]  # name → a function that reads it


def read_folder(
    folder: str | Path, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Model:
    """The model of a Hugging Face folder: config.json and safetensors, sharded or not.

    Args:
        folder: the folder.
        dtype: of the weights; as they are on disk if `None`.
        device: where to put them; the CPU if `None`.

    Returns:
        A `Decoder`, `Encoder` or `EncoderDecoder` in eval mode.

    Raises:
        FileNotFoundError: there is no config.json or no weights.
        ValueError: a family, setting or tensor that is not known; a damaged file.
    """
    folder = Path(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json, {_what_else(folder)}")
    settings = Settings(read_json(path), str(path))
    kind = settings.take("model_type", None)
    if kind is None:
        raise ValueError(f"{path} has no 'model_type', so nobody knows what the model is")
    if kind not in FAMILIES:
        raise NotSupportedError(
            f"{path}: model_type = {kind!r} is not supported (only {', '.join(FAMILIES)})"
        )
    family = FAMILIES[kind]
    try:
        config = family.read(settings)
    except (TypeError, AttributeError) as error:  # such as a list where a number is due
        raise ValueError(f"{path} has a setting of the wrong kind: {error}") from error
    config = _generation_settings(config, folder / "generation_config.json")
    tensors = open_safetensors(weight_files(folder))
    tensors = {_canonical(name, family): read for name, read in tensors.items()}
    return build(family, config, tensors, str(folder), dtype, device)


def build(
    family: Family,
    config: AnyConfig,
    tensors: Tensors,
    source: str,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Model:
    """A model whose every parameter comes out of ``tensors``.

    Args:
        family: whose names the tensors have, without the family's prefix.
        config: what the model is made of; a tied head, a pooler and a masked-token head follow
            the tensors.
        tensors: name → a function that reads the tensor.
        source: the file, for error messages.
        dtype: of the weights; as they are if `None`.
        device: where to put them; the CPU if `None`.

    Raises:
        ValueError: a tensor is missing, not known, or of the wrong shape.
    """
    names = {
        ours: replace(piece, theirs=tuple(n.removeprefix(family.prefix) for n in piece.theirs))
        for ours, piece in family.names_for(config).items()
    }
    if getattr(config, "shared_embedding", True):
        tensors = _without_copies(family, tensors, source)
    said = config
    config = _settle(family, config, tensors, names, source)
    with torch.device("meta"):  # shapes without numbers: nothing is initialised in vain
        model: Model = family.model(config)  # type: ignore[arg-type]
    state: dict[str, Tensor] = {}
    used: set[str] = set()
    for ours, wanted in model.state_dict().items():
        piece = _piece(names, ours)
        used.update(piece.theirs)
        missing = [name for name in piece.theirs if name not in tensors]
        if missing:
            raise ValueError(
                f"{source} lacks the tensor {missing[0]!r} that a {family.name} model with these "
                f"settings needs (as part of {ours})"
            )
        sizes = _sizes(piece, ours, wanted, model)
        state[ours] = _assemble(piece, tensors, wanted.shape, sizes, source)
    dtype = dtype or _one_dtype(state)
    state = {ours: tensor.to(device=device, dtype=dtype) for ours, tensor in state.items()}
    if config.tied_head:
        used.update(names["head.weight"].theirs if "head.weight" in names else ())
    _account_for(family, set(tensors) - used, source)
    if "head.weight" in names and config.tied_head and not said.tied_head:
        (head,) = names["head.weight"].theirs
        warnings.warn(
            f"{source} has no {head!r} though its settings say that the head is not tied; "
            f"using the embedding table as the head",
            stacklevel=3,
        )
    model.load_state_dict(state, assign=True)
    return model.eval()


def write_folder(model: Model, folder: str | Path) -> None:
    """Write config.json and model.safetensors so that transformers loads an equal model.

    Each file is written under another name and then renamed, so a folder never holds half a file.

    Args:
        model: one of ours.
        folder: made if it is not there.

    Raises:
        TypeError: not a model of ours.
        ValueError: no published family can express the model's configuration.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(model, (Decoder, Encoder, EncoderDecoder)):
        raise TypeError(
            f"save takes a jumok Decoder, Encoder or EncoderDecoder; got {type(model).__name__}"
        )
    family = _family_for(model)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    masked = isinstance(model.config, Config) and model.config.masked_head
    names = family.names_for(model.config)
    tensors = {}
    for ours, tensor in model.state_dict().items():
        of_head = ours in family.masked_names
        piece = _piece(names, ours)
        # A model with a head has the model without one as a part, under the family's prefix.
        prefix = family.prefix if masked and not of_head else ""
        for name, part in zip(
            piece.theirs, _parts(piece, ours, tensor.detach().cpu(), model), strict=True
        ):
            part = part.T if piece.flipped else part[None] if piece.as_row else part
            tensors[prefix + name] = part.contiguous()
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    settings = {
        "model_type": family.name,
        "architectures": [family.masked_architecture if masked else family.architecture],
        "dtype": dtype,
        "torch_dtype": dtype,
        **family.write(model.config),
    }
    replace_file(
        folder / "model.safetensors", lambda path: save_file(tensors, path, {"format": "pt"})
    )
    text = json.dumps(settings, indent=2) + "\n"
    replace_file(folder / "config.json", lambda path: path.write_text(text, "utf-8"))


def published_rows(model: Model, ours: str, rows: Tensor) -> tuple[dict[str, Tensor], bool]:
    """What stands for rows of one of our matrices, under the names of the model's family.

    Args:
        model: one of ours.
        ours: the matrix's name, such as "layers.0.attention.qkv.weight".
        rows: (N, …), a row for each of the matrix's rows.

    Returns:
        The family's name of each matrix that ours is stacked of → its rows, and whether the
        family keeps those matrices transposed.
    """
    family = _family_for(model)
    masked = isinstance(model.config, Config) and model.config.masked_head
    prefix = family.prefix if masked and ours not in family.masked_names else ""
    piece = _piece(family.names_for(model.config), ours)
    parts = _parts(piece, ours, rows, model)
    names = [prefix + name for name in piece.theirs]
    return dict(zip(names, parts, strict=True)), piece.flipped


def _what_else(folder: Path) -> str:
    """What a folder without config.json is."""
    if (folder / "adapter_config.json").is_file():
        return (
            "but adapter_config.json: it is an adapter, which changes another model. Merge it "
            "with that: in peft, model.merge_and_unload().save_pretrained(folder)"
        )
    if files := sorted(folder.glob("*.gguf")):
        return f"but {files[0].name}: give that file itself, {files[0]}"
    return "so it is no checkpoint folder"


# Reading --------------------------------------------------------------------------------------


def _canonical(name: str, family: Family) -> str:
    """A tensor's name without what some writers put around it."""
    name = name.removeprefix("_orig_mod.").removeprefix(family.prefix)
    return re.sub(
        r"LayerNorm\.(gamma|beta)$",
        lambda found: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[found[1]],
        name,
    )


def _piece(names: Mapping[str, Piece], ours: str) -> Piece:
    """Where ``layers.3.…`` comes from, layer number filled in."""
    number = re.search(r"(?<![^.])layers\.(\d+)\.", ours)
    if number is None:
        return names[ours]
    piece = names[ours.replace(number[0], "layers.{i}.", 1)]
    return replace(piece, theirs=tuple(n.replace("{i}", number[1]) for n in piece.theirs))


def _assemble(
    piece: Piece, tensors: Tensors, shape: torch.Size, sizes: Sequence[int], source: str
) -> Tensor:
    """Ours, (N, …), out of theirs, whose numbers of rows are ``sizes``."""
    parts = [tensors[name]() for name in piece.theirs]
    for name, part in zip(piece.theirs, parts, strict=True):
        if part.dtype not in _DTYPES:
            raise ValueError(
                f"{source}: {name} is stored as {str(part.dtype).removeprefix('torch.')}, which "
                f"means nothing without the scales of its quantisation; take a checkpoint in "
                f"float32, bfloat16 or float16"
            )
    if piece.flipped:
        parts = [part.T.contiguous() if part.ndim == 2 else part for part in parts]
    if piece.as_row:
        parts = [part[0] if part.ndim == 2 and len(part) == 1 else part for part in parts]
    if [part.shape for part in parts] != [(size, *shape[1:]) for size in sizes]:
        found = ", ".join(f"{n} {tuple(p.shape)}" for n, p in zip(piece.theirs, parts, strict=True))
        wanted = ", ".join(str((size, *shape[1:])) for size in sizes)
        raise ValueError(f"{source}: {found}, where the settings ask for {wanted}")
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _one_dtype(state: Mapping[str, Tensor]) -> torch.dtype:
    """The one that holds all numbers of a file that mixes several."""
    return functools.reduce(torch.promote_types, {tensor.dtype for tensor in state.values()})


def _generation_settings(config: AnyConfig, path: Path) -> AnyConfig:
    """What generation_config.json says about the ids that end a text or never appear in one."""
    if not path.is_file():
        return config
    values = read_json(path)
    changes: dict[str, Any] = {}
    eos = read_ids(values, "eos_token_id", str(path))
    if eos:
        changes["eos_ids"] = eos
    if suppressed := suppressed_ids(values):
        changes["suppressed_ids"] = suppressed
    if isinstance(config, EncoderDecoderConfig):
        start = values.get("decoder_start_token_id")
        if start is not None:
            changes["bos_id"] = start
        encoder, decoder = (replace(one, **changes) for one in (config.encoder, config.decoder))
        return replace(config, encoder=encoder, decoder=decoder)
    return replace(config, **changes)


def _without_copies(family: Family, tensors: Tensors, source: str) -> Tensors:
    """The tensors without those that repeat another one."""
    tensors = dict(tensors)
    for copy, original in family.copies.items():
        if copy not in tensors:
            continue
        repeated = tensors.pop(copy)
        if original not in tensors:
            tensors[original] = repeated
        elif not torch.equal(repeated(), tensors[original]()):
            raise ValueError(
                f"{source}: {copy!r} differs from {original!r}; jumok has one tensor for both"
            )
    return tensors


def _settle(
    family: Family,
    config: AnyConfig,
    tensors: Tensors,
    names: Mapping[str, Piece],
    source: str,
) -> AnyConfig:
    """What the tensors have the last word about: heads and the pooler."""

    def has(ours: str) -> bool:
        return ours in names and all(name in tensors for name in names[ours].theirs)

    if family.model is Encoder:
        assert isinstance(config, Config)
        special = family.masked_activation
        if has("masked_head.bias") and special not in (None, config.feed_forward):
            raise NotSupportedError(
                f"{source}: the masked-token head of a {family.name} model has the activation "
                f"{special!r}, and this model {config.feed_forward!r}; one for both is supported"
            )
        return replace(config, pooler=has("pooler.weight"), masked_head=has("masked_head.bias"))
    tied = _is_head_tied(config, tensors, names)
    if isinstance(config, EncoderDecoderConfig):
        encoder = replace(config.encoder, tied_head=tied)
        decoder = replace(config.decoder, tied_head=tied)
        return replace(config, encoder=encoder, decoder=decoder, head_bias=has("head_bias"))
    return replace(config, tied_head=tied)


def _is_head_tied(config: AnyConfig, tensors: Tensors, names: Mapping[str, Piece]) -> bool:
    """Is the output head the embedding table?"""
    tables = ("target_embedding.weight", "encoder.embedding.weight", "embedding.weight")
    table_name = next(name for name in tables if name in names)
    (head,), (table,) = names["head.weight"].theirs, names[table_name].theirs
    if head not in tensors:
        return True
    if config.tied_head and table in tensors:
        return torch.equal(tensors[head](), tensors[table]())
    return False


def _account_for(family: Family, rest: set[str], source: str) -> None:
    """Nothing of the file is left out without a word."""
    rest = {name for name in rest if not name.endswith(family.without_weights or ("\0",))}
    heads = sorted(name for name in rest if name.startswith(family.heads or ("\0",)))
    unknown = sorted(rest - set(heads))
    if unknown:
        raise ValueError(
            f"{source} has tensors that a {family.name} model with these settings doesn't use: "
            f"{', '.join(unknown[:8])}{' …' if len(unknown) > 8 else ''}"
        )
    if heads:
        warnings.warn(
            f"{source}: left out the tensors of a task head, which jumok doesn't have: "
            f"{', '.join(heads)}",
            stacklevel=4,
        )


# Writing --------------------------------------------------------------------------------------


def _family_for(model: Model) -> Family:
    closest: tuple[str, dict[str, tuple[Any, Any]]] | None = None
    families = [family for family in FAMILIES.values() if isinstance(model, family.model)]
    for family in families:
        found = family.differences(model.config)
        if found == {}:
            return family
        if found is not None and (closest is None or len(found) < len(closest[1])):
            closest = family.name, found
    kind = type(model).__name__
    if closest is None:
        names = ", ".join(family.name for family in families)
        reason = f"none of {names} has {_brief(model.config)}"
    else:
        listed = [
            f"{name} = {_brief(theirs)} instead of {_brief(mine)}"
            for name, (mine, theirs) in list(closest[1].items())[:4]
        ]
        more = f" and {len(closest[1]) - 4} more" if len(closest[1]) > 4 else ""
        reason = f"{closest[0]} comes closest, but has {', '.join(listed)}{more}"
    raise ValueError(
        f"no published family can express this {kind}, so it can't be saved as a folder that "
        f"transformers reads: {reason}. Change that, or keep the weights alone with "
        f"safetensors.torch.save_model(model, 'weights.safetensors'); load_model puts them into "
        f"another {kind} of this config"
    )


def _brief(value: Any) -> str:
    """A value; of an object only what is not as usual, and long ones cut."""
    text = repr(value)
    if is_dataclass(value):
        unusual = [
            f"{one.name}={getattr(value, one.name)!r}"
            for one in fields(value)
            if getattr(value, one.name) != one.default
        ]
        text = f"{type(value).__name__}({', '.join(unusual)})"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _parts(piece: Piece, ours: str, tensor: Tensor, model: Model) -> list[Tensor]:
    """Our tensor, taken apart into theirs."""
    return list(torch.split(tensor, _sizes(piece, ours, tensor, model)))


def _sizes(piece: Piece, ours: str, tensor: Tensor, model: Model) -> list[int]:
    """How many rows each of theirs has."""
    if ".attention.qkv." not in ours or len(piece.theirs) == 1:
        return [tensor.shape[0] // len(piece.theirs)] * len(piece.theirs)
    attention: Any = model.get_submodule(ours.partition(".qkv.")[0])
    keys = attention.n_kv_heads * attention.head_dim
    return [attention.n_heads * attention.head_dim, keys, keys]
