"""Blocks compiled with ``torch.compile``, where that goes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import nn

from jumok.model.blocks import Block

__all__ = ["compile_blocks", "wants_compiling"]


def wants_compiling(asked: bool | None, device: torch.device) -> bool:
    """What was asked for; where nothing was, on a GPU that has its compiler."""
    if asked is not None:
        return asked
    return device.type == "cuda" and find_spec("triton") is not None


def compile_blocks(model: nn.Module, try_out: Callable[[], None]) -> str | None:
    """Compile each block in place; names of parameters stay as they are.

    Args:
        model: one of ours.
        try_out: forward and backward once, which compiles; random numbers are put back.

    Returns:
        Why it did not go, in one line; the model is then as it was. `None`: it is compiled.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the compiler's, of its own parts
            for block in blocks:
                block.compile()
            try_out()
    except Exception as error:  # a compiler has many ways to fail, and all end here
        for block in blocks:
            block._compiled_call_impl = None
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[0][:200]
    return None
