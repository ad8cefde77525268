"""Low-rank adapters (Hu et al. 2022): a model learns a small change of its matrices.

Every linear map of the blocks, W, becomes ``W + α/r · B A`` with B (out, r) and A (r, in); only A
and B learn. `peft` does it, on our modules. What is written afterwards is for everybody: the
adapter under the names that the model's family publishes, so that peft puts it on the same model
of transformers, and the model with the adapter merged in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from jumok.model.blocks import Block
from jumok.model.checkpoints import Model, published_rows
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.transformer import Decoder
from jumok.model.weight_files import replace_file
from jumok.model.zoo import ZOO, model_folder

__all__ = ["add_lora", "has_lora", "merge_lora", "write_adapter"]

_NAME = "default"  # what peft calls the only adapter


def add_lora(model: nn.Module, rank: int, alpha: float | None = None) -> None:
    """Add adapters to every linear map of the blocks, in place; everything else is frozen.

    The model's outputs are the same at first: B is zero.

    Args:
        model: one of ours.
        rank: width r of the adapters.
        alpha: their scale is ``alpha / rank``. `None`: 2 r.

    Raises:
        ValueError: no rank of at least 1, or adapters are there already.
    """
    import peft

    if rank < 1:
        raise ValueError(f"rank={rank}: the width of an adapter is at least 1")
    if has_lora(model):
        raise ValueError("this model has adapters already; merge_lora makes it a plain one again")
    names = [
        f"{at}.{name}"
        for at, block in model.named_modules()
        if isinstance(block, Block)
        for name, part in block.named_modules()
        if isinstance(part, nn.Linear)
    ]
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        target_modules=names,
    )
    peft.inject_adapter_in_model(config, model)


def has_lora(model: nn.Module) -> bool:
    """Whether the model has adapters that are not merged."""
    return any(True for _ in _adapted(model))


def merge_lora(model: nn.Module) -> None:
    """Add the adapters to the matrices, in place: a plain model again, whose weights all learn."""
    for name, layer in list(_adapted(model)):
        layer.merge(safe_merge=True)
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, layer.get_base_layer())
    if hasattr(model, "peft_config"):
        del model.peft_config
    model.requires_grad_(True)


def write_adapter(model: Model, folder: Path, base: str) -> None:
    """Write the adapters so that peft puts them on the same model of transformers.

    ``PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)``. Where
    several of the family's matrices are one of ours (queries, keys and values; gate and up), they
    get the same A, and each its rows of B.

    Args:
        model: with adapters, see `add_lora`.
        folder: made if it is not there.
        base: the name or folder of the model that the adapters were made for; for an embedded
            one, such as "smollm2", its folder in the cache is written down.
    """
    import peft

    tensors: dict[str, Tensor] = {}
    targets: set[str] = set()
    config: Any = None
    flipped = False
    for name, layer in _adapted(model):
        down, up = layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight  # (r, in), (out, r)
        config = model.peft_config[_NAME]  # type: ignore[index]
        rows, transposed = published_rows(model, f"{name}.weight", up.detach().cpu())
        flipped |= transposed
        for theirs, part in rows.items():
            module = theirs.removesuffix(".weight")
            targets.add(module)
            place = f"base_model.model.{module}"
            tensors[f"{place}.lora_A.weight"] = down.detach().cpu().clone()
            tensors[f"{place}.lora_B.weight"] = part.clone()
    if config is None:
        raise ValueError("this model has no adapters to write")
    kinds = {Decoder: "CAUSAL_LM", EncoderDecoder: "SEQ_2_SEQ_LM"}
    written = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,
        target_modules=sorted(targets),
        fan_in_fan_out=flipped,
        task_type=kinds.get(type(model)),
        base_model_name_or_path=str(model_folder(base)) if base in ZOO else base,
        inference_mode=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(
        folder / "adapter_model.safetensors",
        lambda path: save_file(tensors, path, {"format": "pt"}),
    )
    values = {key: _plain(value) for key, value in written.to_dict().items()}
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    replace_file(folder / "adapter_config.json", lambda path: path.write_text(text, "utf-8"))


def _adapted(model: nn.Module) -> Any:
    """Names and modules of the maps that have adapters."""
    for name, module in model.named_modules():
        if isinstance(getattr(module, "lora_A", None), nn.ModuleDict):
            yield name, module


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return sorted(value) if isinstance(value, set) else getattr(value, "value", value)
