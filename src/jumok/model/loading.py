"""`load` and `save`: from a name to a model, and from a model to a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from jumok.model.checkpoints import Model, read_folder, write_folder
from jumok.model.gguf_files import open_gguf, read_gguf
from jumok.model.zoo import ZOO, FetchError, model_folder
from jumok.tokens import Tokenizer, as_tokenizer

if TYPE_CHECKING:
    from jumok.model.transformer import Decoder, Encoder

__all__ = ["load", "save"]

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_NOT_FROM_HUB = ["*/*", "consolidated*"]  # other formats of the same weights
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)


def load(
    name_or_path: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> tuple[Model, Tokenizer | None]:
    """A model and its tokenizer.

    Args:
        name_or_path: "minilm" or "smollm2" (fetched on first use), a folder of safetensors, a
            ``.gguf`` file, or the id of a model on the Hugging Face hub (owner/name).
        dtype: of the weights, such as ``torch.bfloat16`` or "bfloat16". `None`: as they are
            stored; float32 for the embedded models and for GGUF files.
        device: where to put the model. `None`: the CPU.

    Returns:
        ``(model, tokenizer)``: a `Decoder` or `Encoder` in eval mode; the tokenizer is `None`
        for a folder that has none.

    Raises:
        ValueError: no model of that name; a checkpoint that is damaged or not supported.
        OSError: a file is missing, or the model could not be fetched.

    Example:
        >>> model, tokenizer = jumok.load("smollm2")
    """
    dtype = _read_dtype(dtype)
    text, path = str(name_or_path), Path(name_or_path).expanduser()
    if text in ZOO:
        path = model_folder(text)
    elif path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(
                f"{path} is no model: give its folder (with config.json and safetensors) or a "
                f".gguf file"
            )
        reader = open_gguf(path)
        return read_gguf(path, dtype, device, reader), Tokenizer.from_gguf(reader)
    elif not path.is_dir():
        if path.suffix == ".gguf" or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text):
            raise ValueError(
                f"there is no model {text!r}. It can be {', '.join(ZOO)}, a folder, a .gguf file, "
                f"or a hub id (owner/name)"
            )
        path = _hub_folder(text)
    tokenizer = None
    if any((path / name).is_file() for name in _TOKENIZER_FILES):
        tokenizer = Tokenizer.from_folder(path)
    return read_folder(path, dtype, device), tokenizer


def save(model: Decoder | Encoder, folder: str | Path, tokenizer: Any = None) -> None:
    """Write a folder that `load` and transformers read.

    Args:
        model: a `Decoder` or `Encoder`.
        folder: made if it is not there. Files are replaced whole, never half-written.
        tokenizer: ours, or a transformers tokenizer, to be written beside it.

    Raises:
        ValueError: no published family can express the model's configuration.
        TypeError: not a model of ours, or no tokenizer.
    """
    write_folder(model, folder)
    if tokenizer is not None:
        as_tokenizer(tokenizer).save(folder)


def _read_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype={dtype!r}: one of float32, bfloat16, float16, float64")
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
            f"cannot fetch {name!r} from the hub: {reason[0]} Is the name right? Download it "
            f"where there is a network and give its folder; {', '.join(ZOO)} need no hub."
        ) from error
