"""LoRA: adapters on our modules, merged and apart, here and in transformers with peft."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn

import jumok
from jumok.model.config import Config, EncoderDecoderConfig, Learned
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.model.transformer import Decoder, Encoder
from jumok.training import lora, snapshot
from jumok.training.parallel import World
from jumok.training.snapshot import State

peft = pytest.importorskip("peft")

IDS = torch.tensor([[5, 9, 2, 30, 7], [1, 1, 8, 20, 3]])
SIZES = {"vocab_size": 37, "emb_dim": 16, "n_layers": 2, "n_heads": 4, "context": 32}


def llama() -> Decoder:
    return Decoder(Config(**SIZES, n_kv_heads=2, hidden_dim=24))


def gpt2() -> Decoder:
    return Decoder(
        Config(
            **SIZES,
            positions=Learned(),
            norm="layer",
            feed_forward="gelu_tanh",
            qkv_bias=True,
            output_bias=True,
            feed_forward_bias=True,
        )
    )


def bert() -> Encoder:
    return Encoder(
        Config(
            **SIZES,
            positions=Learned(),
            norm="layer",
            norm_place="post",
            feed_forward="gelu",
            qkv_bias=True,
            output_bias=True,
            feed_forward_bias=True,
            token_types=2,
            masked_head=True,
        )
    )


def seq2seq() -> EncoderDecoder:
    return EncoderDecoder(
        EncoderDecoderConfig.vaswani(37, 16, 2, 4, dropout=0.0, bos_id=0, pad_id=0, context=32)
    )


def logits_of(model: Any, ids: Tensor = IDS) -> Tensor:
    if isinstance(model, Encoder):
        return model.logits(model(ids))
    return model(ids, ids) if isinstance(model, EncoderDecoder) else model(ids)  # type: ignore[no-any-return]


def learn(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        logits = logits_of(model)
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()


def new_optimiser(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


@pytest.mark.parametrize(
    ("new", "theirs", "matrices"),
    [
        (llama, "AutoModelForCausalLM", 7),
        (gpt2, "AutoModelForCausalLM", 4),
        (bert, "AutoModelForMaskedLM", 6),
        (seq2seq, "AutoModelForSeq2SeqLM", 16),
    ],
)
def test_an_adapter_is_the_same_change_here_merged_and_in_transformers(
    tmp_path: Path, new: Any, theirs: str, matrices: int
) -> None:
    torch.manual_seed(0)
    model = new().eval()
    jumok.save(model, tmp_path / "base")
    plain = logits_of(model).detach()
    lora.add_lora(model, rank=3, alpha=5.0)
    assert torch.equal(logits_of(model), plain)  # B is zero
    learn(model, new_optimiser(model), 20)
    ours = logits_of(model).detach()
    assert (ours - plain).abs().max() > 0.05

    lora.write_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    lora.merge_lora(model)
    torch.testing.assert_close(logits_of(model), ours, atol=1e-5, rtol=0)
    assert all(parameter.requires_grad for parameter in model.parameters())
    jumok.save(model, tmp_path / "merged")

    loader = getattr(transformers, theirs)
    asked = {"input_ids": IDS, **({"decoder_input_ids": IDS} if new is seq2seq else {})}
    merged = loader.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(merged(**asked).logits, ours, atol=1e-5, rtol=0)
    base = loader.from_pretrained(tmp_path / "base").eval()
    torch.testing.assert_close(base(**asked).logits, plain, atol=1e-5, rtol=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)  # theirs
        adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(adapted(**asked).logits, ours, atol=1e-5, rtol=0)
    found = [name for name, _ in adapted.named_parameters() if "lora_A" in name]
    assert len(found) == 2 * matrices


def test_only_the_adapters_learn() -> None:
    torch.manual_seed(0)
    model = llama()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    lora.add_lora(model, rank=2)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    # A is (r, in) and B (out, r), for qkv, output, up and down of both layers
    sizes = [16, 16 + 2 * 8, 16, 16, 16, 48, 24, 16]
    assert sum(model.get_parameter(n).numel() for n in learning) == 2 * 2 * sum(sizes)
    learn(model, new_optimiser(model), 2)
    for name, parameter in model.named_parameters():
        plain = name.replace(".base_layer", "")
        if plain in before:
            assert torch.equal(parameter, before[plain]), name
        else:
            assert ".lora_" in name


def test_going_on_is_bit_for_bit(tmp_path: Path) -> None:
    def new(seed: int) -> State:
        torch.manual_seed(1)
        model = llama()
        torch.manual_seed(seed)
        lora.add_lora(model, rank=2)
        return State(model, new_optimiser(model))

    undisturbed, first, second = new(2), new(2), new(3)
    learn(undisturbed.module, undisturbed.optimiser, 6)
    learn(first.module, first.optimiser, 3)
    alone = World(torch.device("cpu"))
    path = snapshot.save(tmp_path, first, alone)
    with safe_open(path / "rank-00000.safetensors", "pt") as file:
        assert all(".lora_" in name for name in file.keys())  # noqa: SIM118
    snapshot.load(path, second, alone)
    learn(second.module, second.optimiser, 3)
    ends = zip(undisturbed.module.parameters(), second.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in ends)


def test_what_cannot_be(tmp_path: Path) -> None:
    model = llama()
    with pytest.raises(ValueError, match="rank=0: the width of an adapter is at least 1"):
        lora.add_lora(model, rank=0)
    with pytest.raises(ValueError, match="no adapters to write"):
        lora.write_adapter(model, tmp_path, "base")
    lora.add_lora(model, rank=1)
    with pytest.raises(ValueError, match="has adapters already"):
        lora.add_lora(model, rank=1)
    assert math.prod(model.layers[0].attention.qkv.lora_A["default"].weight.shape) == 16


def test_other_frozen_weights_are_noticed(tmp_path: Path) -> None:
    def new(value: float) -> State:
        torch.manual_seed(1)
        model = llama()
        with torch.no_grad():
            model.norm.weight[3] = value
        lora.add_lora(model, rank=2)
        frozen = snapshot.fingerprint_of_frozen(model)
        return State(model, new_optimiser(model), frozen=frozen)

    alone = World(torch.device("cpu"))
    path = snapshot.save(tmp_path, new(1.0), alone)
    snapshot.load(path, new(1.0), alone)
    with pytest.raises(ValueError, match="other frozen weights: the model that this run began"):
        snapshot.load(path, new(1.001), alone)
    assert snapshot.fingerprint_of_frozen(llama()) == ""
