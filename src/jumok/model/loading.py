"""`load` and `save`: from a name to a model, and from a model to a folder."""

from __future__ import annotations

import logging
import os
import re
import warnings
from pathlib import Path
from typing import Any, get_args

import torch

from jumok.model.checkpoints import Model, read_folder, write_folder
from jumok.model.families import NotSupportedError
from jumok.model.foreign import ForeignDecoder, ForeignEncoder, ForeignModel, read_with_transformers
from jumok.model.gguf_files import open_gguf, read_gguf
from jumok.model.pooling import read_head, write_head
from jumok.model.quantised import Weights, is_quantised, quantise
from jumok.model.transformer import Decoder, Encoder
from jumok.model.weight_files import open_safetensors, weight_files
from jumok.model.zoo import ZOO, FetchError, model_folder
from jumok.tokens import Tokenizer, as_tokenizer
from jumok.tokens.marian import MARIAN_FILES, read_marian_target, read_marian_vocabulary

__all__ = ["load", "save"]

_log = logging.getLogger("jumok")

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "source.spm", "target.spm"]
# Other formats of the same weights; what sentence-transformers adds is in numbered folders.
_NOT_FROM_HUB = ["[!0-9]*/*", "consolidated*"]
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)
_KINDS = f"{', '.join(ZOO)}, a folder, a .gguf file, or a hub id (owner/name)"
_DTYPES = "float32, bfloat16, float16, float64"


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    weights: Weights | None = None,
) -> tuple[Model | ForeignModel, Tokenizer | None]:
    """A model and its tokenizer.

    Args:
        name_or_path: "minilm" or "smollm2" (fetched on first use), a folder of safetensors, a
            ``.gguf`` file, or the id of a model on the Hugging Face hub (owner/name).
        dtype: of the weights, such as ``torch.bfloat16`` or "bfloat16". `None`: as they are
            stored; float32 for the embedded models and for GGUF files.
        device: where to put the model. `None`: the CPU.
        weights: "int8" or "int4" rounds the weights of its linear maps, for generating faster on
            a CPU, see `jumok.model.quantised`. `None`: they stay numbers of ``dtype``.

    Returns:
        ``(model, tokenizer)``: a `Decoder`, `Encoder` or `EncoderDecoder` in eval mode. A model
        that jumok doesn't build itself is run by transformers where that is installed (a
        `ForeignModel`, called in the same way), and a line in the log "jumok" says so. The
        tokenizer is `None` for a folder that has no file of one.

    Raises:
        TypeError: a name, dtype or device that is none.
        ValueError: no model of that name, no such dtype or device; a checkpoint or tokenizer that
            is damaged or not supported.
        OSError: a file is missing, or the model could not be fetched.

    Example:
        >>> model, tokenizer = jumok.load("smollm2")
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise TypeError(f"load({name_or_path!r}): give the name of a model ({_KINDS})")
    if weights is not None:
        if weights not in get_args(Weights):
            raise ValueError(f"weights={weights!r}: one of {', '.join(get_args(Weights))}")
        model, tokenizer = load(name_or_path, dtype=dtype, device=device)
        if isinstance(model, ForeignModel):
            raise ValueError(f"weights={weights!r}: only models that jumok builds can be rounded")
        quantise(model, weights)
        return model, tokenizer
    dtype, device = _read_dtype(dtype), _read_device(device)
    text, path = os.fspath(name_or_path), Path(name_or_path).expanduser()
    if text in ZOO:
        path = model_folder(text)
        try:
            return _read_folder(path, dtype, device)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"{error}. Delete {path}: {text} is fetched again then") from error
    if text and path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(
                f"{path} is no model: give its folder (with config.json and safetensors) or a "
                f".gguf file"
            )
        reader = open_gguf(path)
        return read_gguf(path, dtype, device, reader), _gguf_tokenizer(path, reader)
    if not text or not path.is_dir():
        if path.suffix == ".gguf" or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text):
            raise ValueError(f"there is no model {text!r}. It can be {_KINDS}")
        return _read_from_hub(text, dtype, device)
    return _read_folder(path, dtype, device)


def save(model: Model | ForeignModel, folder: str | Path, tokenizer: Any = None) -> None:
    """Write a folder that `load` and transformers read.

    Args:
        model: a `Decoder`, `Encoder` or `EncoderDecoder`, or what `load` has given.
        folder: made if it is not there. Files are replaced whole, never half-written.
        tokenizer: ours, or a transformers tokenizer, to be written beside it.

    Raises:
        ValueError: no published family can express the model's configuration.
        TypeError: not a model of ours, or no tokenizer.
    """
    if isinstance(model, ForeignModel):
        model.inner.save_pretrained(folder)
    elif is_quantised(model):
        raise ValueError("save takes a model whose weights have not been rounded to int8 or int4")
    else:
        write_folder(model, folder)
    head = getattr(model, "sentence_head", None)
    if head is not None:
        write_head(head, Path(folder), model.config.emb_dim)
    if tokenizer is not None:
        as_tokenizer(tokenizer).save(folder)


def _read_folder(
    folder: Path, dtype: torch.dtype | None, device: torch.device | None
) -> tuple[Model | ForeignModel, Tokenizer | None]:
    tokenizer = _read_tokenizer(folder)
    model: Model | ForeignModel
    try:
        model = read_folder(folder, dtype, device)
    except NotSupportedError as error:
        model = _fall_back(folder, dtype, device, error)
    if isinstance(model, (Decoder, Encoder, ForeignDecoder, ForeignEncoder)):
        try:
            model.sentence_head = read_head(folder)
        except NotSupportedError as error:
            warnings.warn(
                f"{_said(error)}; jumok.embed doesn't follow it: say pooling=…", stacklevel=3
            )
    return model, tokenizer


def _read_from_hub(
    name: str, dtype: torch.dtype | None, device: torch.device | None
) -> tuple[Model | ForeignModel, Tokenizer | None]:
    folder = _hub_folder(name)
    try:
        weight_files(folder)
    except FileNotFoundError as error:
        raise FetchError(
            f"{name!r} on the hub has no weights as safetensors, and jumok loads no others (a "
            f"pickle can run any program). Its page may name a copy that has them; or convert it "
            f"where you trust it: with transformers, AutoModel.from_pretrained({name!r})"
            f".save_pretrained(folder)"
        ) from error
    return _read_folder(folder, dtype, device)


def _fall_back(
    folder: Path, dtype: torch.dtype | None, device: torch.device | None, reason: NotSupportedError
) -> ForeignModel:
    """The model as transformers runs it; pickles and damaged files are refused as ever."""
    open_safetensors(weight_files(folder))
    try:
        model = read_with_transformers(folder, dtype, device)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise NotSupportedError(
            f"{_said(reason)}. With transformers installed (pip install 'jumok[hf]') it would be "
            f"run by that."
        ) from None
    except ValueError as error:
        raise NotSupportedError(f"{_said(reason)}. {error}") from error
    _log.warning("%s. Transformers runs it (%s).", _said(reason), type(model.inner).__name__)
    return model


def _said(reason: Exception) -> str:
    """One line without its full stop."""
    return str(reason).splitlines()[0].rstrip(".")


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    there = [name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if "tokenizer.json" not in there and all((folder / name).is_file() for name in MARIAN_FILES):
        tokenizer = Tokenizer(*read_marian_vocabulary(folder))
        if (target := read_marian_target(folder)) is not None:
            tokenizer.target = Tokenizer(*target)
        return tokenizer
    return Tokenizer.from_folder(folder) if there else None


def _gguf_tokenizer(path: Path, reader: Any) -> Tokenizer:
    try:
        return Tokenizer.from_gguf(reader)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # the only kind that tokenizers raises
        raise ValueError(f"cannot read the tokenizer of {path}: {error}") from error


def _read_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None:
        return None
    if not isinstance(dtype, (str, torch.dtype)):
        raise TypeError(f"dtype={dtype!r}: one of {_DTYPES}, as a name or of torch")
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype={dtype!r}: one of {_DTYPES}")
    return found


def _read_device(device: torch.device | str | None) -> torch.device | None:
    if device is None:
        return None
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"device={device!r}: a name, such as 'cpu' or 'cuda', or a torch.device")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device={device!r}: torch knows no device of that name") from None
    try:
        torch.empty(0, device=found)
    except Exception as error:  # each kind of device fails in its own way
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"device={device!r}: there is no {found.type.upper()} device that can be used here "
            f"({reason[0].rstrip('.')}); leave device out for the CPU"
        ) from error
    return found


def _hub_folder(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise FetchError(
            f"{name!r} is no folder here, and fetching it from the hub needs huggingface_hub: "
            f"pip install huggingface_hub"
        ) from None
    try:
        return Path(
            snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=_NOT_FROM_HUB)
        )
    except Exception as error:  # its many kinds of network and access errors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise FetchError(
            f"cannot fetch {name!r} from the hub: {reason[0].rstrip('.')}. Is the name right? "
            f"Download it where there is a network and give its folder; {', '.join(ZOO)} need no "
            f"hub."
        ) from error
