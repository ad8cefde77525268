"""Rotary positions, as config.json files describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jumok.model.config import Config, Rotary
from jumok.model.families.settings import NotSupportedError, Settings
from jumok.positions import LinearScaling, Llama3Scaling, Scaling, YarnScaling

__all__ = ["read_rotary", "read_scaling", "write_rotary"]


def read_scaling(settings: Settings, rope: Mapping[str, Any], context: int) -> Scaling | None:
    """What ``rope_scaling`` or ``rope_parameters`` say, read to the last key."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}

    def number(key: str) -> Any:
        known.add(key)
        value = rope.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ValueError(
                f"{settings.source}: {key} = {value!r} in the rotary settings, where a number "
                f"above 0 is due"
            )
        return value

    def needed(key: str) -> Any:
        value = number(key)
        if value is None:
            raise ValueError(f"{settings.source}: rotary settings {dict(rope)} lack {key!r}")
        return value

    scaling: Scaling | None = None
    if kind == "linear":
        scaling = LinearScaling(needed("factor"))
    elif kind == "llama3":
        scaling = Llama3Scaling(
            needed("factor"),
            needed("low_freq_factor"),
            needed("high_freq_factor"),
            number("original_max_position_embeddings") or context,
        )
        if scaling.low_frequency_factor >= scaling.high_frequency_factor:
            raise ValueError(
                f"{settings.source}: rotary settings {dict(rope)}: low_freq_factor must be below "
                f"high_freq_factor"
            )
    elif kind == "yarn":
        original = number("original_max_position_embeddings") or context
        known.add("truncate")
        scaling = YarnScaling(
            number("factor") or context / original,
            original,
            beta_fast=number("beta_fast") or 32.0,
            beta_slow=number("beta_slow") or 1.0,
            truncate=bool(rope.get("truncate", True)),
            attention_factor=number("attention_factor"),
            mscale=number("mscale"),
            mscale_all_dim=number("mscale_all_dim"),
        )
    elif kind != "default":
        raise NotSupportedError(
            f"{settings.source}: rope_type = {kind!r} is not supported "
            f"(only default, linear, llama3, yarn)"
        )
    unknown = {key: value for key, value in rope.items() if key not in known and value is not None}
    if (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        unknown["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if unknown:
        raise NotSupportedError(
            f"{settings.source}: rotary settings {unknown} are not supported with "
            f"rope_type = {kind!r}"
        )
    return scaling


def read_rotary(settings: Settings, context: int = 2048) -> Rotary:
    """Base and scaling, wherever a file has them; ``context`` is the family's default."""
    context = settings.take("max_position_embeddings", context)
    rope = settings.take("rope_scaling", None) or settings.take("rope_parameters", None) or {}
    settings.take("rope_parameters", None)
    theta = settings.take("rope_theta", 10_000.0)
    settings.expect("partial_rotary_factor", None, 1.0)
    settings.expect("rope_interleaved", None, False)
    settings.expect("use_mrope", None, False)
    if not isinstance(rope, Mapping):
        raise ValueError(f"{settings.source}: rotary settings {rope!r} are no object")
    scaling = read_scaling(settings, rope, context)
    inside = Settings(rope, f"{settings.source}, rotary settings")
    return Rotary(float(inside.take("rope_theta", theta)), scaling)


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
