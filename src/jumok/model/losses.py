"""What training an `EncoderDecoder` minimises, and how fast (Vaswani et al. 2017, section 5).

B batch, T tokens, V vocab_size.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["label_smoothed_loss", "warm_up_rate"]


def label_smoothed_loss(
    logits: Tensor, targets: Tensor, smoothing: float = 0.1, ignore_id: int | None = None
) -> Tensor:
    """Cross-entropy against targets of which a share is spread over the whole vocabulary.

    ``(1 − ε) · (−log p_target) + ε · mean_v(−log p_v)``, averaged over tokens (Szegedy et al.
    2015; section 5.4 of the paper takes ε = 0.1).

    Args:
        logits: (B, T, V), each for the token after the one it was computed at.
        targets: (B, T), those tokens.
        smoothing: the share ε, from 0 to 1.
        ignore_id: targets with this id, such as padding, do not count.

    Returns:
        A number, in nats per token; 0 where no target counts.

    Raises:
        ValueError: shapes that don't fit, or a share outside 0 to 1.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} need targets {tuple(logits.shape[:-1])}; got "
            f"{tuple(targets.shape)}"
        )
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing={smoothing}: a share from 0 to 1")
    counted = targets if ignore_id is None else targets.masked_fill(targets == ignore_id, -100)
    total = F.cross_entropy(
        logits.flatten(0, -2), counted.flatten(), reduction="sum", label_smoothing=smoothing
    )
    return total / (counted != -100).sum().clamp(min=1)


def warm_up_rate(step: int, emb_dim: int, warm_up_steps: int = 4000) -> float:
    """The learning rate of a step: up in a straight line, then down with its square root.

    ``E^−0.5 · min(step^−0.5, step · warm_up_steps^−1.5)`` (equation 3 of the paper). With
    ``torch.optim.lr_scheduler.LambdaLR`` give the optimizer a learning rate of 1.

    Args:
        step: of the optimizer, from 1; 0 counts as 1.
        emb_dim: width E of the model.
        warm_up_steps: how many steps the rate rises.

    Raises:
        ValueError: a negative step, or no step of warm-up.
    """
    if step < 0 or warm_up_steps < 1:
        raise ValueError(
            f"step={step}, warm_up_steps={warm_up_steps}: a step from 0 and at least 1 of warm-up"
        )
    step = max(step, 1)
    return float(emb_dim**-0.5 * min(step**-0.5, step * warm_up_steps**-1.5))
