"""Layers that mix tokens without attention weights: Mamba, linear attention, FNet, RWKV.

In a model that has both, a layer without a map must not be silently absent. Two signs tell, and
both ask only what ran: a layer stands in one list with layers whose attention was heard, is of
their kind, and nothing was heard in it; or a module bears the name of a mixer that forms no
weights. The signs name what is missing and never change what is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

# Token mixers of the literature that form no (queries, keys) weights, as people name them.
_MIXERS = re.compile(
    r"mamba|\bssm|SSM|state_?space|linear_?(self_?)?att(entio)?n|lightning_?att(entio)?n|"
    r"delta_?net|delta_?att(entio)?n|delta_?rule|rwkv|retention|BasicFourierTransform|hyena|rg_?lru|"
    r"recurrent_?block|short_?conv|[ms]lstm|deformable_?att(entio)?n|PoolFormerPooling",
)
_PARTS = re.compile(
    r"Norm|Embed|MLP|Mlp|MoE|Moe[A-Z]|FeedForward|Experts|Activation|Cache|Model|For[A-Z]"
)

_LISTS = ("ModuleList", "Sequential", "ModuleDict")


def without_attention(model: Any, ran: Mapping[str, str], heard: Iterable[str]) -> dict[str, str]:
    """Modules that ran and mix tokens without weights that could be recorded.

    Args:
        model: a `torch.nn.Module`.
        ran: path → class name of every module that ran.
        heard: paths of the modules in which attention ran, heard or not.

    Returns:
        Path → class name, in the order of the model.
    """
    modules = dict(model.named_modules())
    attended: set[str] = set()
    heard = {name for name in heard if name in modules}
    for name in heard:
        parts = name.split(".")
        attended |= {".".join(parts[:count]) for count in range(len(parts) + 1)}
    found: dict[str, str] = {}
    for name, module in modules.items():
        if not (name and name in ran) or name in attended:
            continue
        if _inside(name, found) or _inside(name, heard):
            continue
        if _is_mixer(name, module) and not _holds_a_mixer(name, module, ran):
            found[name] = type(module).__name__
    for name, layers in modules.items():
        if type(layers).__name__ in _LISTS:
            found |= _odd_layers(name, layers, ran, attended, found)
    return {name: found[name] for name in modules if name in found}


def _inside(name: str, found: Container[str]) -> bool:
    """Whether a module lies inside one of others."""
    while name:
        name = name.rpartition(".")[0]
        if name and name in found:
            return True
    return False


def _is_mixer(name: str, module: Any) -> bool:
    """Whether a module of somebody's own bears the name of a mixer."""
    kind = type(module)
    if kind.__module__.startswith("torch.") or _PARTS.search(kind.__name__):
        return False
    called = f"{name.rpartition('.')[2]} {kind.__name__}"
    return bool(_MIXERS.search(called) or _MIXERS.search(called.lower()))


def _holds_a_mixer(name: str, module: Any, ran: Mapping[str, str]) -> bool:
    """Whether a module is only what stands around a mixer."""
    return any(
        path and f"{name}.{path}" in ran and _is_mixer(path, part)
        for path, part in module.named_modules()
    )


def _odd_layers(
    name: str,
    layers: Any,
    ran: Mapping[str, str],
    attended: set[str],
    found: Mapping[str, str],
) -> dict[str, str]:
    """Layers of one list in which nothing was heard, though others of their kind attend."""
    prefix = f"{name}." if name else ""
    children = dict(layers.named_children())
    attending = [child for key, child in children.items() if prefix + key in attended]
    odd: dict[str, str] = {}
    for key, child in children.items():
        path = prefix + key
        silent = path in ran and path not in attended
        if not silent or path in found or any(other.startswith(path + ".") for other in found):
            continue
        if any(_alike(child, other) for other in attending):
            odd.update(_mixer(path, child, attending, ran))
    return odd


def _alike(layer: Any, other: Any) -> bool:
    """Whether two layers are of one kind: of one class, or with a composite part in common."""
    parts = _composites(layer) - {type(layer)}
    return type(layer) is type(other) or bool(parts & _composites(other))


def _composites(layer: Any) -> set[type]:
    """Classes of a layer's parts that are more than a linear map or a norm."""
    return {
        type(part)
        for part in layer.modules()
        if not type(part).__module__.startswith("torch.")
        and any(parameter.ndim > 1 for parameter in part.parameters())
    }


def _mixer(
    path: str, layer: Any, attending: Iterable[Any], ran: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The part that stands where the others have their attention; else the layer itself."""
    usual = {type(part) for other in attending for part in other.children()}
    for name, part in layer.named_children():
        if type(part) not in usual and f"{path}.{name}" in ran:
            if not _PARTS.search(type(part).__name__):
                yield f"{path}.{name}", type(part).__name__
            return  # a feed-forward part in the mixer's place mixes no tokens
    yield path, type(layer).__name__
