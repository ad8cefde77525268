"""Rotary positions, as config.json files describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jumok.model.config import Config, Rotary
from jumok.model.families.settings import NotSupportedError, Settings
from jumok.positions import LinearScaling, Llama3Scaling, Scaling, YarnScaling

__all__ = ["read_rotary", "read_scaling", "write_rotary"]


def read_scaling(settings: Settings, rope: Mapping[str, Any], context: int) -> Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    original = rope.get("original_max_position_embeddings") or context
    scaling: Scaling | None = None
    if kind == "linear":
        known |= {"factor"}
        scaling = LinearScaling(rope["factor"])
    elif kind == "llama3":
        known |= {
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        }
        scaling = Llama3Scaling(
            rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], original
        )
    elif kind == "yarn":
        optional = ("attention_factor", "mscale", "mscale_all_dim")
        known |= {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow"}
        known |= {"truncate", *optional}
        scaling = YarnScaling(
            rope.get("factor") or context / original,
            original,
            beta_fast=rope.get("beta_fast") or 32.0,
            beta_slow=rope.get("beta_slow") or 1.0,
            truncate=rope.get("truncate", True),
            **{name: rope.get(name) for name in optional},
        )
    elif kind != "default":
        raise NotSupportedError(
            f"{settings.source}: rope_type = {kind!r} is not supported "
            f"(only default, linear, llama3, yarn)"
        )
    unknown = {key: value for key, value in rope.items() if key not in known and value is not None}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        unknown["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if unknown:
        raise NotSupportedError(
            f"{settings.source}: rotary settings {unknown} are not supported with "
            f"rope_type = {kind!r}"
        )
    return scaling


def read_rotary(settings: Settings) -> Rotary:
    context = settings.take("max_position_embeddings", 2048)
    rope = settings.take("rope_scaling", None) or settings.take("rope_parameters", None) or {}
    settings.take("rope_parameters", None)
    theta = settings.take("rope_theta", None)
    settings.expect("partial_rotary_factor", None, 1.0)
    settings.expect("rope_interleaved", None, False)
    settings.expect("use_mrope", None, False)
    try:
        scaling = read_scaling(settings, rope, context)
    except KeyError as missing:
        raise ValueError(f"{settings.source}: rotary settings {rope} lack {missing}") from None
    return Rotary(float(rope.get("rope_theta") or theta or 10_000.0), scaling)


def write_rotary(config: Config) -> dict[str, Any]:
    if not isinstance(config.positions, Rotary):
        return {}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.positions.theta}
    scaling = config.positions.scaling
    if isinstance(scaling, LinearScaling):
        rope |= {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, Llama3Scaling):
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    elif isinstance(scaling, YarnScaling):
        rope |= {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_context,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "truncate": scaling.truncate,
        }
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(scaling, name) is not None:
                rope[name] = getattr(scaling, name)
    # The base stands outside too, where readers older than `rope_parameters` look for it.
    return {"rope_parameters": rope, "rope_theta": config.positions.theta}
