"""How sentence-transformers sums a text up: the modules of its folders, read and written.

A folder names them in ``modules.json``: the Transformer itself, then ``1_Pooling`` (which hidden
states are summed up, and how), maybe ``2_Dense`` (a linear map), maybe ``2_Normalize``.

B batch, T tokens, E emb_dim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from jumok.model.families import NotSupportedError
from jumok.model.weight_files import open_safetensors, read_json, replace_file

__all__ = ["MODES", "Dense", "SentenceHead", "pooled", "read_head", "write_head"]

MODES = ("mean", "first", "max", "mean_sqrt_len", "weighted_mean", "last")
# Their keys of 1_Pooling/config.json, in the order in which they are put side by side.
_KEYS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_SENTENCE = "sentence_embedding"
_PROMPTS = "config_sentence_transformers.json"
_LIMITS = ("sentence_bert_config.json", *(
    f"sentence_{kind}_config.json"
    for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
))  # fmt: skip
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu",
                "Sigmoid": "sigmoid", "SiLU": "silu"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Dense:
    """A linear map of the vector, (out, in) with a bias (out,) or none, and an activation."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    def __call__(self, vectors: Tensor) -> Tensor:
        """(B, in) → (B, out)"""
        weight, bias = self.weight.to(vectors), self.bias
        found = F.linear(vectors, weight, None if bias is None else bias.to(vectors))
        return found if self.activation == "identity" else _act(self.activation, found)


@dataclass(frozen=True, eq=False)
class SentenceHead:
    """What follows an encoder that gives one vector for a text.

    Attributes:
        modes: how hidden states are summed up; several ways are put side by side.
        steps: `Dense` maps and "normalize", in their order.
        context: how many tokens are read at most, if the folder says so.
        prompts: name → what is put before a text, such as {"query": "query: "}.
        prompt: the name of the one that is put there unless another is asked for.
        lower_case: texts are read in small letters.
    """

    modes: tuple[str, ...] = ("mean",)
    steps: tuple[Dense | Literal["normalize"], ...] = ()
    context: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None
    lower_case: bool = False

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, T, E) and (B, T) → (B, width)"""
        vectors = torch.cat([pooled(hidden, mask, mode) for mode in self.modes], dim=-1)
        for step in self.steps:
            vectors = F.normalize(vectors, dim=-1) if step == "normalize" else step(vectors)
        return vectors

    def unnormalized(self) -> SentenceHead:
        """The same with vectors of any length."""
        return replace(self, steps=tuple(step for step in self.steps if step != "normalize"))

    def width(self, emb_dim: int) -> int:
        """How many numbers a vector has."""
        maps = [step.weight.shape[0] for step in self.steps if isinstance(step, Dense)]
        return maps[-1] if maps else emb_dim * len(self.modes)


def pooled(hidden: Tensor, mask: Tensor, mode: str) -> Tensor:
    """One vector for each text, (B, T, E) and (B, T) → (B, E)."""
    seen = mask.bool()
    weight = seen.to(hidden.dtype)[..., None]
    hidden = torch.where(weight > 0, hidden, hidden.new_zeros(()))  # padding may hold anything
    if mode == "first":
        return hidden.gather(1, _places(seen.to(torch.uint8).argmax(dim=1), hidden))[:, 0]
    if mode == "last":
        last = seen.shape[1] - 1 - seen.flip(1).to(torch.uint8).argmax(dim=1)
        return hidden.gather(1, _places(last, hidden))[:, 0]
    if mode == "max":
        return hidden.masked_fill(weight == 0, -torch.inf).amax(dim=1)
    if mode == "weighted_mean":
        weight = weight * weight.cumsum(dim=1)
    total = (hidden * weight).sum(dim=1)
    count = weight.sum(dim=1).clamp(min=1)
    return total / (count.sqrt() if mode == "mean_sqrt_len" else count)


def _places(place: Tensor, hidden: Tensor) -> Tensor:
    return place[:, None, None].expand(-1, 1, hidden.shape[-1])


def _act(name: str, values: Tensor) -> Tensor:
    found: Tensor = getattr(F if name in ("gelu", "silu") else torch, name)(values)
    return found


# Reading ------------------------------------------------------------------------------------


def read_head(folder: Path) -> SentenceHead | None:
    """What a folder of sentence-transformers says; `None` for any other folder.

    Raises:
        NotSupportedError: modules that aren't known here.
        ValueError: a damaged file.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        modules = json.loads(path.read_text("utf-8"))
        kinds = [(str(one["type"]).rsplit(".", 1)[-1], folder / one["path"]) for one in modules]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if [kind for kind, _ in kinds[:2]] != ["Transformer", "Pooling"]:
        raise NotSupportedError(
            f"{path}: modules {', '.join(kind for kind, _ in kinds)}; a Transformer and a Pooling "
            "come first in those that are supported"
        )
    steps: list[Dense | Literal["normalize"]] = []
    for kind, place in kinds[2:]:
        if kind == "Normalize":
            steps.append("normalize")
        elif kind == "Dense":
            steps.append(_read_dense(place))
        else:
            raise NotSupportedError(f"{path}: a module {kind} is not supported")
    prompts, prompt = _read_prompts(folder / _PROMPTS)
    values = read_json(kinds[1][1] / "config.json")
    if any(prompts.values()) and not values.get("include_prompt", True):
        raise NotSupportedError(f"{kinds[1][1]}: include_prompt = false is not supported")
    context, lower_case = _read_limits(kinds[0][1])
    modes = _read_modes(kinds[1][1], values)
    return SentenceHead(modes, tuple(steps), context, prompts, prompt, lower_case)


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    values = read_json(path) if path.is_file() else {}
    prompts, name = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(one, str) for one in prompts.values()):
        raise ValueError(f"{path}: prompts = {prompts!r} must be texts by name")
    if name is not None and name not in prompts:
        raise ValueError(f"{path}: default_prompt_name = {name!r} is none of its prompts")
    return prompts, name


def _read_modes(folder: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    named = values.get("pooling_mode")
    if named is not None:
        names = [named] if isinstance(named, str) else list(named)
        unknown = [name for name in names if name not in _NAMES]
        if unknown:
            raise NotSupportedError(f"{folder}: pooling_mode = {unknown[0]!r} is not supported")
        return tuple(_NAMES[name] for name in names)
    modes = tuple(mode for key, mode in _KEYS.items() if values.get(key))
    if not modes:
        raise NotSupportedError(f"{folder}/config.json names no way of pooling that is known here")
    return modes


def _read_dense(folder: Path) -> Dense:
    values = read_json(folder / "config.json")
    if values.get("use_residual") or values.get("module_input_name", _SENTENCE) != _SENTENCE:
        raise NotSupportedError(f"{folder}: a dense map of anything but the vector, or beside it")
    name = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = _ACTIVATIONS.get(name.rsplit(".", 1)[-1])
    if activation is None:
        raise NotSupportedError(f"{folder}: activation_function = {name!r} is not supported")
    tensors = open_safetensors([folder / "model.safetensors"])
    bias = tensors["linear.bias"]() if "linear.bias" in tensors else None
    return Dense(tensors["linear.weight"](), bias, activation)


def _read_limits(folder: Path) -> tuple[int | None, bool]:
    """How many tokens are read at most, and whether capital letters become small ones."""
    path = next((folder / name for name in _LIMITS if (folder / name).is_file()), None)
    values = {} if path is None else read_json(path)
    value = values.get("max_seq_length")
    return value if isinstance(value, int) else None, bool(values.get("do_lower_case"))


# Writing ------------------------------------------------------------------------------------


def write_head(head: SentenceHead, folder: Path, emb_dim: int) -> None:
    """Write the modules beside a model, as sentence-transformers reads them."""
    base = "sentence_transformers.models"
    modules = [("", f"{base}.Transformer"), ("1_Pooling", f"{base}.Pooling")]
    _write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": emb_dim,
            **{key: mode in head.modes for key, mode in _KEYS.items()},
        },
    )
    for number, step in enumerate(head.steps, 2):
        name = f"{number}_{'Normalize' if step == 'normalize' else 'Dense'}"
        modules.append((name, f"{base}.{name.partition('_')[2]}"))
        if isinstance(step, Dense):
            _write_dense(step, folder / name)
    _write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": kind}
            for number, (path, kind) in enumerate(modules)
        ],
    )
    limits: dict[str, Any] = {} if head.context is None else {"max_seq_length": head.context}
    if head.lower_case:
        limits["do_lower_case"] = True
    if limits:
        _write_json(folder / _LIMITS[0], limits)
    if head.prompts:
        _write_json(
            folder / _PROMPTS,
            {"prompts": dict(head.prompts), "default_prompt_name": head.prompt},
        )


def _write_dense(dense: Dense, folder: Path) -> None:
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    kind = names[dense.activation]
    place = "linear" if kind == "Identity" else "activation"
    _write_json(
        folder / "config.json",
        {
            "in_features": dense.weight.shape[1],
            "out_features": dense.weight.shape[0],
            "bias": dense.bias is not None,
            "activation_function": f"torch.nn.modules.{place}.{kind}",
        },
    )
    parts = {"linear.weight": dense.weight, "linear.bias": dense.bias}
    tensors = {name: part.cpu().contiguous() for name, part in parts.items() if part is not None}
    replace_file(folder / "model.safetensors", lambda path: save_file(tensors, path))


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=2) + "\n"
    replace_file(path, lambda part: part.write_text(text, "utf-8"))
