"""Compiling that fails leaves the model as it was."""

from __future__ import annotations

import torch

from jumok import Config, Decoder
from jumok.training.compiling import compile_blocks, wants_compiling


def test_a_compiler_that_fails_is_told_and_left_out() -> None:
    model = Decoder(Config(61, 16, 2, 2))
    names, ids = [name for name, _ in model.named_parameters()], torch.tensor([[1, 2, 3]])
    wanted, before = model(ids), torch.get_rng_state()

    def fail() -> None:
        torch.rand(3)
        raise RuntimeError("no C++ compiler\nmore")

    assert compile_blocks(model, fail) == "no C++ compiler"
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model(ids), wanted)
    assert [name for name, _ in model.named_parameters()] == names


def test_nothing_is_compiled_on_a_cpu_that_was_not_asked_for() -> None:
    cpu = torch.device("cpu")
    assert not wants_compiling(None, cpu)
    assert wants_compiling(True, cpu)
    assert not wants_compiling(False, torch.device("cuda"))
