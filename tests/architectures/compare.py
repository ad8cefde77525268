"""Watch an architecture and compare its maps with its own eager weights."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import jumok

from .configs import tiny_config
from .inputs import Inputs, with_places
from .models import model_class
from .reference import Caught, catching

TOLERANCE = 1e-5

# Their references are no softmax of (batch, heads, queries, keys).
NO_SOFTMAX = {
    "longformer": "its weights are bands: each query against its window, not (…, queries, keys)",
    "led": "the encoder's weights are bands, as Longformer's",
    "reformer": "hashed buckets and local chunks, each normalised by a logsumexp of its own",
    "yoso": "attention is estimated by hashing; no weights are formed",
    "pegasus_x": "the encoder's softmax runs over global tokens and a block at once, in two parts",
    "mra": "a multi-resolution approximation; no weights are formed",
}


@dataclass
class Watched:
    """One watched run, compared with the eager weights."""

    run: str  # "eager" or "default"
    implementation: str
    how: dict[str, int] = field(default_factory=dict)
    maps: int = 0
    error: float | None = None
    identical: bool | None = None
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    disagree: list[str] = field(default_factory=list)
    """Where the model's two implementations differ, and the map is right about the one that ran."""
    remarks: list[str] = field(default_factory=list)
    failure: str | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass
class Result:
    """One architecture: its model, its eager weights, and what the lens heard of them."""

    architecture: str
    model: str = ""
    inputs: str = ""
    reference: int = 0
    places: dict[str, int] = field(default_factory=dict)
    spread: float | None = None
    no_attention: list[str] = field(default_factory=list)
    runs: list[Watched] = field(default_factory=list)
    why_not: str | None = None
    no_softmax: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def build(architecture: str) -> tuple[Any, Any]:
    """(configuration, model class) of an architecture, tiny."""
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[architecture]
    return tiny_config(config_class), model_class(config_class)


def make_model(model_class: Any, config: Any, implementation: str | None) -> Any:
    """A model with random weights that give attention something to choose by."""
    torch.manual_seed(0)
    options = {} if implementation is None else {"attn_implementation": implementation}
    model = model_class._from_config(copy.deepcopy(config), **options).float().eval()
    randomize(model)
    return model


# Parts that amplify: with weights of the ordinary size their scores are so large that float32
# itself is off by more than the tolerance, or their outputs become very long.
GENTLE = {
    "vits": ("duration_predictor", 0.05),
    "informer": ("", 0.5),
    "seamless_m4t": ("", 0.5),
    "seamless_m4t_v2": ("", 0.5),
    "wavtokenizer": ("", 0.5),
}


def randomize(model: nn.Module) -> None:
    """Weights of about the size that keeps numbers of size 1; a trained model's are as uneven."""
    part, factor = GENTLE.get(model.config.model_type, ("", 1.0))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters(), key=lambda pair: pair[0]):
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=random)
            if parameter.ndim < 2:
                parameter.add_(0.1 * noise)
                continue
            fan_in = parameter.shape[-1] if parameter.ndim == 3 else parameter.shape[1:].numel()
            size = factor if part in name else 1.0
            parameter.copy_(noise * size * max(fan_in, 1) ** -0.5)


def run(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    """One forward, with the same random numbers every time."""
    torch.manual_seed(0)
    np.random.seed(0)
    inputs = {k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()}
    with torch.no_grad():
        return model(**inputs, **options)


def find_inputs(model: Any) -> dict[str, Any]:
    """The first set of inputs that the model takes."""
    first: Exception | None = None
    for inputs in Inputs(model).candidates():
        for _ in range(4):
            try:
                run(model, inputs)
                return inputs
            except Exception as error:
                changed = with_places(inputs, model, error)
                if changed is None:
                    first = first or error
                    break
                inputs = changed
    if first is None:
        raise ValueError("none of its arguments is one that inputs are made for")
    raise first


def leaves(value: Any) -> Iterator[Tensor]:
    """All tensors in a model's output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for key in value:
            yield from leaves(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)


def check(architecture: str) -> Result:
    """Everything about one architecture; never raises for what the architecture does."""
    result = Result(architecture)
    try:
        config, found = build(architecture)
        if found is None:
            result.why_not = "a part of another model; it has no model class of its own"
            return result
        result.model = found.__name__
        eager = make_model(found, config, "eager")
        inputs = find_inputs(eager)
    except Exception as error:
        result.why_not = _said(error)
        return result
    result.inputs = ", ".join(inputs)
    result.no_attention = sorted({type(m).__name__ for m in eager.modules() if _no_attention(m)})
    _ask_for_attentions(eager, True)
    try:
        with catching(eager) as reference:
            run(eager, inputs)
    except (IndexError, TypeError, AttributeError):  # a few cannot hand them out
        _ask_for_attentions(eager, False)
        with catching(eager) as reference:
            run(eager, inputs)
    expected = reference.by_module()
    reason = NO_SOFTMAX.get(architecture)
    if reason is not None:
        result.why_not, result.no_softmax = reason, True
        return result
    result.reference = sum(len(items) for items in expected.values())
    for items in expected.values():
        for item in items:
            result.places[item.place] = result.places.get(item.place, 0) + 1
    result.spread = max(
        (_spread(i.weights) for items in expected.values() for i in items), default=None
    )
    real = _real_rows(inputs)
    result.runs.append(_watched("eager", eager, inputs, expected, real))
    try:
        plain = make_model(found, config, None)
        plain.load_state_dict(eager.state_dict())
        _share_buffers(plain, eager)
    except Exception as error:
        failure = _said(error)
        result.runs.append(Watched("default", "?", failure=failure))
        return result
    result.runs.append(_watched("default", plain, inputs, expected, real))
    return result


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _ask_for_attentions(model: Any, please: bool) -> None:
    for module in model.modules():
        part = getattr(module, "config", None)
        if hasattr(part, "output_attentions"):
            with contextlib.suppress(Exception):  # some refuse under a kernel that gives none
                part.output_attentions = please


def _share_buffers(to: nn.Module, source: nn.Module) -> None:
    buffers = dict(source.named_buffers())
    for name, buffer in to.named_buffers():
        if name in buffers and buffers[name].shape == buffer.shape:
            buffer.copy_(buffers[name])


# Layers that mix tokens without a softmax over keys, by a part of their class's name.
_MIXERS = (
    "Mamba", "LinearAttention", "GatedDelta", "KimiDelta", "Rwkv", "RWKV", "FNetBasic", "Rglru",
    "Lightning", "ShortConv", "xLSTM", "mLSTM", "DeformableAttention", "PoolFormerPooling",
)  # fmt: skip


def _no_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    whole = ("Model", "Layer", "Norm", "Block", "Norm2", "Gated", "PreTrainedModel")
    return any(mark in name for mark in _MIXERS) and not name.endswith(whole)


def _spread(weights: Tensor) -> float:
    """How far weights are from uniform over what they see."""
    weights = weights.float()
    seen = (weights > 1e-8).sum(-1, keepdim=True).clamp(min=1)
    return float((weights - (weights > 1e-8) / seen).abs().max()) if weights.numel() else 0.0


def _real_rows(inputs: dict[str, Any]) -> dict[int, Tensor]:
    """Which tokens are real, by the length of the sequence; other lengths have no padding."""
    return {
        int(mask.shape[1]): mask.bool()
        for name, mask in inputs.items()
        if name.endswith("attention_mask") and isinstance(mask, Tensor) and mask.ndim == 2
    }


def _watched(
    kind: str,
    model: Any,
    inputs: dict[str, Any],
    expected: dict[str, list[Caught]],
    real: dict[int, Tensor],
) -> Watched:
    watched = Watched(kind, getattr(model.config, "_attn_implementation", None) or "?")
    own: dict[str, list[Caught]] = {}
    try:
        plain = list(leaves(run(model, inputs)))
        if kind != "eager":
            with catching(model) as reference:
                run(model, inputs)
            own = reference.by_module()
        with warnings.catch_warnings(record=True) as said, jumok.watch(model) as recording:
            warnings.simplefilter("always")
            output = run(model, inputs)
    except Exception as error:
        watched.failure = _said(error)
        return watched
    watched.warnings = [str(item.message)[:300] for item in said if "jumok" in str(item.filename)]
    after = list(leaves(output))
    watched.identical = len(plain) == len(after) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
        if a.is_floating_point()
        else torch.equal(a, b)
        for a, b in zip(plain, after, strict=True)
    )
    watched.maps = len(recording)
    for one in recording:
        how = _how(one, expected.get(one.name.partition("#")[0], []), own)
        watched.how[how] = watched.how.get(how, 0) + 1
    heard: dict[str, list[Any]] = {}
    for one in recording:
        heard.setdefault(one.name.partition("#")[0], []).append(one)
    for name, items in expected.items():
        maps = heard.pop(name, [])
        for at, item in enumerate(items):
            if at >= len(maps):
                watched.missing.append(f"{name} {tuple(item.weights.shape)} [{item.place}]")
                continue
            also = own.get(name, [])
            _compare(watched, maps[at], item, real, also[at] if at < len(also) else None)
        watched.extra += [f"{one.name} {one.shape}" for one in maps[len(items) :]]
    watched.extra += [f"{one.name} {one.shape}" for maps in heard.values() for one in maps]
    return watched


def _rows_sum_to_one(weights: Tensor) -> bool:
    return bool(((weights.sum(-1) - 1).abs() < 1e-3).all())


def _how(one: Any, eager: list[Caught], own: dict[str, list[Caught]]) -> str:
    """Where the lens heard a map, in the words of the page."""
    places = {item.place for item in eager}
    if one.call.scale == 0.0 and one.call.bias is not None:
        return "by hand, weights stored"
    if "eager function" in places:
        return "interface"
    if "multi_head_attention_forward" in places:
        return "multi_head_attention_forward"
    ran = {item.place for item in own.get(one.name.partition("#")[0], eager)}
    return "SDPA" if ran == {"SDPA"} else "by hand"


def _compare(
    watched: Watched, one: Any, item: Caught, real: dict[int, Tensor], own: Caught | None
) -> None:
    """Compare a map with the eager weights; where they differ, with those of the same run."""
    weights = item.weights.float()
    if weights.ndim == 4 and weights.permute(2, 3, 0, 1).shape == one.shape != weights.shape:
        weights = weights.permute(2, 3, 0, 1)  # XLNet: (queries, keys, batch, heads)
    if tuple(weights.shape) != tuple(one.shape):
        if weights.numel() != one.size or tuple(weights.shape[-2:]) != tuple(one.shape[-2:]):
            watched.shapes.append(
                f"{one.name} {one.shape} against {tuple(weights.shape)} [{item.place}]"
            )
            return
        weights = weights.reshape(one.shape)
    try:
        found = one[...].cpu()
    except Exception as error:
        watched.wrong.append(f"{one.name}: {_said(error)}")
        return
    rows = real.get(one.shape[2])
    if rows is not None and rows.shape[0] != one.shape[0]:
        rows = None
    if not bool(weights.isfinite().all()):
        watched.wrong.append(f"{one.name}: the reference itself is not finite [{item.place}]")
        return
    if not bool(found.isfinite().all()):
        watched.wrong.append(f"{one.name}: the map is not finite")
        return

    def largest(expected: Tensor) -> float:
        difference = (found - expected).abs()
        difference = difference if rows is None else difference * rows[:, None, :, None]
        return float(difference.max()) if difference.numel() else 0.0

    error = largest(weights)
    if error > TOLERANCE and one.call.sinks is not None and _rows_sum_to_one(weights):
        # Eager hands out the weights before the sink takes its share (Granite SWA).
        totals = found.sum(-1, keepdim=True)
        found = torch.where(totals > 0, found / totals, found)
        error = largest(weights)
        watched.remarks = ["eager returns the weights before the sink takes its share"]
    if error > TOLERANCE and own is not None and own.weights.numel() == one.size:
        nearer = largest(own.weights.float().reshape(one.shape))
        if nearer <= TOLERANCE:
            watched.disagree.append(f"{one.name}: {error:.1e}")
            error = nearer
    watched.error = max(watched.error or 0.0, error)
    if error > TOLERANCE:
        watched.wrong.append(f"{one.name} {one.shape}: {error:.1e} [{item.place}]")
