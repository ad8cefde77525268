"""Checkpoints on disk ↔ our modules: Hugging Face folders of safetensors.

Tensors are mapped by name with the table of the model's family (`jumok.model.families`); every
tensor of the file must be used, known to hold no weights, or named in a warning, and every
parameter of the model must be found. Weights are memory-mapped where nothing has to be changed.
Pickle is never loaded.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from jumok.model.config import Config
from jumok.model.families import FAMILIES, Family, Piece, Settings
from jumok.model.transformer import Decoder, Encoder

__all__ = ["Model", "build", "read_folder", "write_folder"]

Model = Decoder | Encoder
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
        A `Decoder` or `Encoder` in eval mode.

    Raises:
        FileNotFoundError: there is no config.json or no weights.
        ValueError: a family, setting or tensor that is not known; a damaged file.
    """
    folder = Path(folder)
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json, so it is no checkpoint folder")
    settings = Settings(_read_json(path), str(path))
    kind = settings.need("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"{path}: model_type = {kind!r} is not supported (only {', '.join(FAMILIES)})"
        )
    family = FAMILIES[kind]
    config = family.read(settings)
    generation = folder / "generation_config.json"
    if generation.is_file():
        eos = _read_json(generation).get("eos_token_id")
        if eos is not None:
            config = replace(config, eos_ids=tuple(eos) if isinstance(eos, list) else (eos,))
    tensors = _open_safetensors(_weight_files(folder))
    tensors = {_canonical(name, family): read for name, read in tensors.items()}
    return build(family, config, tensors, str(folder), dtype, device)


def build(
    family: Family,
    config: Config,
    tensors: Tensors,
    source: str,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Model:
    """A model whose every parameter comes out of ``tensors``.

    Args:
        family: whose names the tensors have, without the family's prefix.
        config: what the model is made of; `tied_head` and `pooler` follow the tensors.
        tensors: name → a function that reads the tensor.
        source: the file, for error messages.
        dtype: of the weights; as they are if `None`.
        device: where to put them; the CPU if `None`.

    Raises:
        ValueError: a tensor is missing, not known, or of the wrong shape.
    """
    names = {
        ours: replace(piece, theirs=tuple(n.removeprefix(family.prefix) for n in piece.theirs))
        for ours, piece in family.names.items()
    }
    config = _settle_head(family, config, tensors, names, source)
    config = replace(config, pooler="pooler.dense.weight" in tensors)
    with torch.device("meta"):  # shapes without numbers: nothing is initialised in vain
        model = family.model(config)
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
        state[ours] = _assemble(piece, tensors, wanted, source).to(device=device, dtype=dtype)
    if config.tied_head:
        used.update(names["head.weight"].theirs if "head.weight" in names else ())
    _account_for(family, set(tensors) - used, source)
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
    if not isinstance(model, (Decoder, Encoder)):
        raise TypeError(f"save takes a jumok Decoder or Encoder; got {type(model).__name__}")
    family = _family_for(model)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for ours, tensor in model.state_dict().items():
        piece = _piece(family.names, ours)
        for name, part in zip(
            piece.theirs, _parts(piece, tensor.detach().cpu(), model.config), strict=True
        ):
            tensors[name] = part.T.contiguous() if piece.flipped else part.contiguous()
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    settings = {
        "model_type": family.name,
        "architectures": [family.architecture],
        "dtype": dtype,
        "torch_dtype": dtype,
        **family.write(model.config),
    }
    _replace(folder / "model.safetensors", lambda path: save_file(tensors, path, {"format": "pt"}))
    text = json.dumps(settings, indent=2) + "\n"
    _replace(folder / "config.json", lambda path: path.write_text(text, "utf-8"))


# Reading --------------------------------------------------------------------------------------


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object; it holds a {type(values).__name__}")
    return values


def _weight_files(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} is damaged: it has no weight_map of tensors to files")
        shards = sorted({folder / str(name) for name in weight_map.values()})
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise FileNotFoundError(f"{folder} lacks {missing} that {index.name} speaks of")
        return shards
    pickles = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for path in folder.glob("*.pt*")
    )
    if pickles:
        raise ValueError(
            f"{folder} has its weights in {pickles[0]}, which is a pickle: loading it can run any "
            f"program, so jumok never does. Convert it where you trust it: with transformers, "
            f"AutoModel.from_pretrained(folder).save_pretrained(new_folder) writes safetensors."
        )
    raise FileNotFoundError(f"{folder} has no model.safetensors")


def _open_safetensors(paths: Iterable[Path]) -> dict[str, Callable[[], Tensor]]:
    readers: dict[str, Callable[[], Tensor]] = {}
    for path in paths:
        with path.open("rb") as opened:
            start = opened.read(64)
        if not start:
            raise ValueError(f"{path} is empty")
        if start.startswith(b"version https://git-lfs"):
            raise ValueError(
                f"{path} is only a pointer of Git LFS, not the weights: run `git lfs pull` there"
            )
        try:
            file = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
        for name in file.keys():  # type: ignore[no-untyped-call]  # noqa: SIM118
            if name in readers:
                raise ValueError(f"{path}: the tensor {name!r} is in another shard as well")
            readers[name] = _reader(file, name)
    return readers


def _reader(file: Any, name: str) -> Callable[[], Tensor]:
    return lambda: file.get_tensor(name)


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
    number = re.match(r"layers\.(\d+)\.", ours)
    if number is None:
        return names[ours]
    piece = names[ours.replace(number[0], "layers.{i}.", 1)]
    return replace(piece, theirs=tuple(n.replace("{i}", number[1]) for n in piece.theirs))


def _assemble(piece: Piece, tensors: Tensors, wanted: Tensor, source: str) -> Tensor:
    parts = [tensors[name]() for name in piece.theirs]
    if piece.flipped:
        parts = [part.T.contiguous() if part.ndim == 2 else part for part in parts]
    fits = all(part.shape[1:] == wanted.shape[1:] for part in parts)
    if not fits or sum(part.shape[0] if part.ndim else 0 for part in parts) != wanted.shape[0]:
        found = ", ".join(f"{n} {tuple(p.shape)}" for n, p in zip(piece.theirs, parts, strict=True))
        raise ValueError(
            f"{source}: {found} cannot make up {tuple(wanted.shape)}, which the settings ask for"
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _settle_head(
    family: Family, config: Config, tensors: Tensors, names: Mapping[str, Piece], source: str
) -> Config:
    """Is the output head the embedding table? The tensors have the last word."""
    if family.model is not Decoder:
        return config
    (head,), (table,) = names["head.weight"].theirs, names["embedding.weight"].theirs
    if head not in tensors:
        if not config.tied_head:
            warnings.warn(
                f"{source} has no {head!r} though its settings say that the head is not tied; "
                f"using the embedding table as the head",
                stacklevel=4,
            )
        return replace(config, tied_head=True)
    if config.tied_head and table in tensors:
        return replace(config, tied_head=torch.equal(tensors[head](), tensors[table]()))
    return config


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
    for family in FAMILIES.values():
        if isinstance(model, family.model) and family.expresses(model.config):
            return family
    raise ValueError(
        f"no published family ({', '.join(FAMILIES)}) can express this {type(model).__name__}, so "
        f"it can't be saved as a checkpoint for transformers: {model.config}"
    )


def _parts(piece: Piece, tensor: Tensor, config: Config) -> list[Tensor]:
    """Our tensor, taken apart into theirs."""
    if len(piece.theirs) == 1:
        return [tensor]
    assert config.head_dim is not None
    assert config.n_kv_heads is not None
    keys = config.n_kv_heads * config.head_dim
    return list(torch.split(tensor, [config.n_heads * config.head_dim, keys, keys]))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
