"""What goes into the layers: checked ids and masks, embedded tokens, and who sees whom.

B batch, T tokens, E emb_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jumok.masks import Mask, Packed, Padding, Window, join
from jumok.model.parts import AddedPositions, RelativeBias

__all__ = ["LayerRules", "embedded", "read_inputs"]


def read_inputs(ids: Tensor, mask: Tensor | None) -> Tensor | None:
    """Check ids and mask; the mask as booleans, or `None` if every token is real."""
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        found = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(
            f"a model takes token ids, an integer tensor (batch, tokens); got {found}. For one "
            f"list of ids: torch.tensor([ids])"
        )
    if mask is None:
        return None
    if tuple(mask.shape) != tuple(ids.shape):
        raise ValueError(
            f"mask {tuple(mask.shape)} must have the shape of ids {tuple(ids.shape)}: True or 1 "
            f"for a real token, False or 0 for padding"
        )
    visible = mask if mask.dtype == torch.bool else mask == 1
    if mask.dtype != torch.bool and not bool((visible | (mask == 0)).all()):
        raise ValueError(
            f"mask holds only 1 (real token) and 0 (padding); got values from {mask.min()} to "
            f"{mask.max()}"
        )
    return None if bool(visible.all()) else visible


def embedded(
    table: nn.Embedding,
    ids: Tensor,
    scale: float,
    positions: AddedPositions | None,
    places: range | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Tokens as vectors, with what marks their positions.

    Args:
        table: of embeddings.
        ids: (B, T)
        scale: factor of the embeddings.
        positions: what is added to them.
        places: positions of the tokens: a range, or integers (B, T).
        mask: (B, T), `True` for a real token, or `None`.

    Returns:
        (B, T, E)
    """
    try:
        x: Tensor = table(ids)
    except IndexError:
        raise ValueError(
            f"token ids must be from 0 to {table.num_embeddings - 1}; got {int(ids.min())} to "
            f"{int(ids.max())}. Is it the tokenizer of another model?"
        ) from None
    if scale != 1.0:
        x = x * x.new_tensor(scale)  # rounded to the weights' dtype, as published models do
    if positions is not None:
        x = x + positions(places, ids, mask).to(x.dtype)
    return x


class LayerRules:
    """What is added to the scores of the layers of one forward, and who sees whom there.

    One object for all layers that are alike.

    Args:
        visible: (B, Tk) booleans, `True` for a real token, or `None` if all are.
        relative_bias: what adds positions to the scores, if anything does.
        both_ways: a window reaches as far ahead as behind.
        documents: (B, Tk) integers, the document that each token belongs to; only those of the
            own are seen. `None`: a row is one document.
    """

    def __init__(
        self,
        visible: Tensor | None,
        relative_bias: RelativeBias | None,
        both_ways: bool = False,
        documents: Tensor | None = None,
    ) -> None:
        self._visible, self._relative_bias, self._both_ways = visible, relative_bias, both_ways
        self._documents = documents
        self._known: dict[tuple[int | None, int], Mask | None] = {}
        self._biases: dict[tuple[int, int], Tensor] = {}

    def mask(self, window: int | None, n_keys: int) -> Mask | None:
        """The rule for a layer with this window over the last ``n_keys`` keys.

        `None` where it would hide nothing.
        """
        if (window, n_keys) not in self._known:
            self._known[window, n_keys] = self._rule(window, n_keys)
        return self._known[window, n_keys]

    def bias(self, n_queries: int, n_keys: int) -> Tensor | None:
        """(1, H, n_queries, n_keys) to be added to the scores, or `None`."""
        if self._relative_bias is None:
            return None
        if (n_queries, n_keys) not in self._biases:
            self._biases[n_queries, n_keys] = self._relative_bias(n_queries, n_keys)
        return self._biases[n_queries, n_keys]

    def _rule(self, window: int | None, n_keys: int) -> Mask | None:
        rules: list[Mask] = []
        if self._visible is not None:
            rules.append(Padding(self._visible[:, self._visible.shape[1] - n_keys :]))
        if self._documents is not None:
            rules.append(Packed(self._documents))
        if window is not None and n_keys > window:
            rules.append(Window(window, ahead=window - 1 if self._both_ways else 0))
        return join(*rules) if rules else None
