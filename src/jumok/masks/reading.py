"""What a user's mask means."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from jumok.masks.arrays import Dense
from jumok.masks.rule import Array, Mask


def read_mask(mask: Mask | Array | None) -> tuple[Mask | None, Array | None]:
    """Read a mask as users write it, into a rule and an additive bias.

    * a `Mask`: itself;
    * booleans: `True` = may attend (as SDPA and ONNX; ``torch.nn.MultiheadAttention`` has it
      the other way round);
    * integers of only 0 and 1: the same as booleans;
    * floats: added to the scores; values at or below half of the smallest finite number of
      their type hide the key.

    Args:
        mask: one of these, broadcastable to (…, queries, keys), or `None`.

    Returns:
        ``(rule, bias)``, either of which may be `None`.

    Raises:
        ValueError: other integers; floats of only 0 and 1 with a 1 in them, which could mean
            either.
        TypeError: anything else.
    """
    if mask is None:
        return None, None
    if isinstance(mask, Mask):
        return mask, None
    if isinstance(mask, (list, tuple)):
        mask = np.asarray(mask)
    try:
        xp = array_namespace(mask)
    except TypeError:
        raise TypeError(
            f"a mask is a boolean, 0/1 integer or additive float array, or a rule such as "
            f"jumok.masks.Causal(); got {type(mask).__name__}"
        ) from None
    if xp.isdtype(mask.dtype, "bool"):
        return _dense(mask), None
    if xp.isdtype(mask.dtype, "integral"):
        if not bool(xp.all((mask == 0) | (mask == 1))):
            values = xp.unique_values(mask)
            wrong = [int(values[i]) for i in range(min(5, values.shape[0]))]
            raise ValueError(
                f"an integer mask holds only 1 (may attend) and 0 (may not); this one of shape "
                f"{tuple(mask.shape)} holds {wrong}. For scores to be added, pass floats."
            )
        return _dense(mask == 1), None
    if xp.isdtype(mask.dtype, "real floating"):
        if mask.ndim and bool(xp.any(mask == 1) & xp.all((mask == 0) | (mask == 1))):
            raise ValueError(
                f"a float mask of only 0. and 1. (shape {tuple(mask.shape)}) is ambiguous: pass "
                f"`mask == 1` if 1 means 'may attend', or `where(mask == 1, -inf, 0.)` if 1 "
                f"means 'hidden'; floats are added to the scores"
            )
        visible = mask > xp.finfo(mask.dtype).min / 2
        if bool(xp.all(visible)):
            return None, mask
        if bool(xp.all(~visible | (mask == 0))):
            return _dense(visible), None
        return _dense(visible), xp.where(visible, mask, xp.zeros_like(mask))
    raise TypeError(f"a mask of dtype {mask.dtype} has no meaning; pass booleans or floats")


def _dense(visible: Array) -> Mask:
    if visible.ndim < 2:
        visible = visible[None, :] if visible.ndim else visible[None, None]
    return Dense(visible)
