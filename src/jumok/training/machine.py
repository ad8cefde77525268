"""What the machine can do, and what a step asks of it: measured peak and counted FLOPs."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import torch
from torch import nn

from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.transformer import Decoder, Encoder
from jumok.training.batches import Batch

__all__ = ["flops_of", "has_bfloat16", "machine_name", "peak_flops"]


def has_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are done by the hardware itself."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(
            torch.cpu._is_avx512_bf16_supported()
            or torch.cpu._is_amx_tile_supported()
            or (platform.machine() in ("aarch64", "arm64") and _arm_has_bfloat16())
        )
    return False


def _arm_has_bfloat16() -> bool:
    try:
        return " bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def peak_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """The most floating-point operations a second of a square matrix product here.

    Args:
        device: where.
        dtype: of the matrices.
        seconds: for how long products are tried.
    """
    size = 1024 if device.type == "cpu" else 4096
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    torch.mm(left, right)
    _wait(device)
    best, end = 0.0, time.perf_counter() + seconds
    while not best or time.perf_counter() < end:
        begin = time.perf_counter()
        torch.mm(left, right)
        _wait(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def machine_name(device: torch.device) -> str:
    """The processor, and how much of it is used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def flops_of(model: Decoder | Encoder | EncoderDecoder, batch: Batch) -> float:
    """Floating-point operations of one training step on this batch, by formula.

    Forward takes 2 for each weight of a matrix and each token it is multiplied with, and 4·T·H·D
    for a token that attends to T tokens (scores and mix; half of it where only earlier tokens are
    seen). Backward takes twice as much as forward, or only as much for weights that don't learn.
    What is computed again, the optimizer, norms and activations are not counted.
    """
    rows, tokens = batch.ids.shape
    if isinstance(model, EncoderDecoder):
        assert batch.target_ids is not None
        new = batch.target_ids.shape[1]
        reads, writes = model.config.encoder, model.config.decoder
        assert reads.head_dim is not None
        assert writes.head_dim is not None
        width = writes.n_heads * writes.head_dim
        total = _of_matrices(model.encoder, rows * tokens)
        total += 3 * 4 * rows * tokens**2 * reads.n_layers * reads.n_heads * reads.head_dim
        total += _of_matrices(model.decoder, rows * new)
        total += 3 * 4 * rows * new * (new / 2 + tokens) * writes.n_layers * width
    else:
        config = model.config
        assert config.head_dim is not None
        seen = tokens / 2 if isinstance(model, Decoder) else tokens
        total = _of_matrices(model.layers, rows * tokens)
        total += 3 * 4 * rows * tokens * seen * config.n_layers * config.n_heads * config.head_dim
    head = model.embedding if isinstance(model, Encoder) else model
    weight = head.weight if isinstance(head, nn.Embedding) else head.head_weight
    slopes = 6 if weight.requires_grad else 4
    return float(total + slopes * weight.numel() * batch.n_targets)


def _of_matrices(part: nn.Module, tokens: int) -> float:
    learn = sum(p.numel() for p in part.parameters() if p.ndim == 2 and p.requires_grad)
    frozen = sum(p.numel() for p in part.parameters() if p.ndim == 2 and not p.requires_grad)
    return float((6 * learn + 4 * frozen) * tokens)
