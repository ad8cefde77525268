"""A diagonal that is gathered is that of the weights."""

import numpy as np
import pytest
import torch

import jumok
from jumok.lens import gathers
from jumok.lens.call import AttentionCall
from jumok.masks import Causal, Dense, Padding, Window

random = torch.Generator().manual_seed(0)
SOME = torch.rand(2, 1, 9, 12, generator=random) > 0.4
SOME[0, 0, 3] = False


@pytest.mark.parametrize(
    "options",
    [
        {"mask": Causal()},
        {"mask": Window(3) & Padding(torch.rand(2, 12, generator=random) > 0.3)},
        {"mask": Dense(SOME)},
        {"bias": torch.randn(1, 6, 9, 12, generator=random), "softcap": 2.0},
        {"bias": torch.full((1, 1, 9, 1), torch.finfo(torch.float32).min)},
        {"sinks": torch.randn(6, generator=random), "mask": Causal()},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("offset", [0, -1, 2, -20, 20, 4])
def test_every_kind_of_call(options, library, offset, monkeypatch):
    monkeypatch.setattr(gathers, "_NUMBERS", 1)
    monkeypatch.setattr(gathers, "_SQUARE", 4)
    q, k = (torch.randn(2, heads, n, 8, generator=random) for heads, n in ((6, 9), (2, 12)))
    double = {
        name: value.double() if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }
    _, weights, lse = jumok.attention(q.double(), k.double(), k.double(), **double)
    settings = {"mask": None, "bias": None, "scale": 8**-0.5} | options
    call = AttentionCall(q=q, k=k, v=None, lse=lse.float(), **settings)
    if library == "numpy":
        if options.get("mask") is not None and not isinstance(options["mask"], Causal):
            pytest.skip("the rule holds torch tensors")
        call = AttentionCall(
            q=q.numpy(), k=k.numpy(), v=None, lse=lse.float().numpy(),
            **{n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in settings.items()},
        )  # fmt: skip
    if "bias" in options and options["bias"].shape[-1] == 1:
        # Rows of the smallest number are uniform, though the oracle hides them.
        weights = torch.full_like(weights, 1 / 12)
        call = AttentionCall(
            **{**call.__dict__, "lse": call.lse * 0 + float(options["bias"].min())}
        )
    found = np.asarray(gathers.diagonal(call, offset))
    for row in range(9):
        key = row + 3 + offset
        expected = weights[:, :, row, key].numpy() if 0 <= key < 12 else np.zeros((2, 6))
        np.testing.assert_allclose(found[:, :, row], expected, atol=1e-6, rtol=1e-5)
