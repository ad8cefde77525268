"""The Transformer of 2017 against `torch.nn.Transformer`, its cache, and its own laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.peers import reopened
from torch import nn
from torch.nn import functional as F

from jumok.definition import attention
from jumok.lens.watch import watch
from jumok.model.checkpoints import read_folder, write_folder
from jumok.model.config import Config, EncoderDecoderConfig, Learned, Relative, Rotary, Sinusoidal
from jumok.model.encoder_decoder import EncoderDecoder
from jumok.positions import sinusoidal

TOLERANCE = {"rtol": 0, "atol": 1e-5}
PAPER = EncoderDecoderConfig.vaswani(
    41, emb_dim=24, n_layers=2, n_heads=4, dropout=0.0, bos_id=1, eos_ids=(2,), pad_id=0
)


def with_sides(config: EncoderDecoderConfig, **changes: Any) -> EncoderDecoderConfig:
    sides = (replace(side, **changes) for side in (config.encoder, config.decoder))
    return replace(config, **dict(zip(("encoder", "decoder"), sides, strict=True)))


PRE_NORM = with_sides(PAPER, norm_place="pre", feed_forward="gelu")
VARIANTS = {
    "paper": PAPER,
    "pre-norm": PRE_NORM,
    "learned": with_sides(PAPER, positions=Learned(), context=32),
    "relative": with_sides(PRE_NORM, positions=Relative(8, 20), attention_scale=1.0),
    "rotary": with_sides(PRE_NORM, positions=Rotary(), n_kv_heads=2, norm="rms"),
    "windows": with_sides(PRE_NORM, windows=(3, None)),
    "two-tables": replace(
        with_sides(PAPER, tied_head=False),
        shared_embedding=False,
        encoder=replace(PAPER.encoder, vocab_size=53),
        head_bias=True,
        logit_scale=0.5,
    ),
}


def ids_of(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 41, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def made(config: EncoderDecoderConfig) -> EncoderDecoder:
    torch.manual_seed(0)
    model = EncoderDecoder(config).eval()
    with torch.no_grad():  # so that heads and norms differ from each other
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0, 0.2)
    return model


def torch_twin(model: EncoderDecoder, norm_first: bool) -> nn.Transformer:
    """`torch.nn.Transformer` with the same weights; the paper has no norm behind its stacks."""
    side = model.config.encoder
    assert side.hidden_dim is not None
    options: dict[str, Any] = {
        "d_model": side.emb_dim,
        "nhead": side.n_heads,
        "dim_feedforward": side.hidden_dim,
        "dropout": 0.0,
        "activation": "gelu" if norm_first else "relu",
        "batch_first": True,
        "norm_first": norm_first,
    }

    def last() -> nn.LayerNorm | None:
        return nn.LayerNorm(side.emb_dim) if norm_first else None

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**options), 2, last(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2, last())
    twin = nn.Transformer(**options, custom_encoder=encoder, custom_decoder=decoder)
    ours = model.state_dict()
    state: dict[str, torch.Tensor] = {}
    for name in ("encoder", "decoder"):
        for i in range(2):
            us, them = f"{name}.layers.{i}", f"{name}.layers.{i}"
            norms = ["attention_norm", "feed_forward_norm"]
            if name == "decoder":
                norms.insert(1, "cross_attention_norm")
            for kind in ("weight", "bias"):
                state[f"{them}.self_attn.in_proj_{kind}"] = ours[f"{us}.attention.qkv.{kind}"]
                state[f"{them}.self_attn.out_proj.{kind}"] = ours[f"{us}.attention.output.{kind}"]
                state[f"{them}.linear1.{kind}"] = ours[f"{us}.feed_forward.up.{kind}"]
                state[f"{them}.linear2.{kind}"] = ours[f"{us}.feed_forward.down.{kind}"]
                for number, norm in enumerate(norms, start=1):
                    state[f"{them}.norm{number}.{kind}"] = ours[f"{us}.{norm}.{kind}"]
                if name == "decoder":
                    cross = f"{us}.cross_attention"
                    state[f"{them}.multihead_attn.in_proj_{kind}"] = torch.cat(
                        [ours[f"{cross}.q.{kind}"], ours[f"{cross}.kv.{kind}"]]
                    )
                    state[f"{them}.multihead_attn.out_proj.{kind}"] = ours[f"{cross}.output.{kind}"]
        if norm_first:
            for kind in ("weight", "bias"):
                state[f"{name}.norm.{kind}"] = ours[f"{name}.norm.{kind}"]
    twin.load_state_dict(state)
    return twin


def by_torch(
    twin: nn.Transformer,
    model: EncoderDecoder,
    source: torch.Tensor,
    target: torch.Tensor,
    source_mask: torch.Tensor | None,
    target_mask: torch.Tensor | None,
) -> torch.Tensor:
    table = model.encoder.embedding.weight
    waves = torch.from_numpy(sinusoidal(64, table.shape[1]))
    x, y = (
        F.embedding(ids, table) * table.shape[1] ** 0.5 + waves[: ids.shape[1]]
        for ids in (source, target)
    )
    hidden = None if source_mask is None else ~source_mask
    states = twin(
        x,
        y,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]) < 0,
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
        tgt_key_padding_mask=None if target_mask is None else ~target_mask,
        tgt_is_causal=False,
    )
    return states @ table.T


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("config", [PAPER, PRE_NORM], ids=["post-norm", "pre-norm"])
def test_equals_torch(config: EncoderDecoderConfig, padded: bool, training: bool) -> None:
    model = made(with_sides(config, positions=Sinusoidal("interleaved"))).train(training)
    twin = torch_twin(model, config is PRE_NORM).train(training)
    source, target = ids_of(3, 9), ids_of(3, 7, seed=1)
    source_mask = target_mask = None
    real = torch.ones(3, 7, dtype=torch.bool)
    if padded:
        source_mask = torch.arange(9) < torch.tensor([[9], [4], [1]])
        target_mask = real = torch.arange(7) < torch.tensor([[7], [7], [3]])
    with torch.set_grad_enabled(training):
        found = model(source, target, source_mask, target_mask=target_mask)
        expected = by_torch(twin, model, source, target, source_mask, target_mask)
    assert expected.std() > 0.3
    torch.testing.assert_close(found[real], expected[real], **TOLERANCE)
    if not training:
        return
    labels = target.roll(-1, 1)[real]
    F.cross_entropy(found[real], labels).backward()
    gradient = model.decoder.layers[0].cross_attention.kv.weight.grad.clone()
    F.cross_entropy(expected[real], labels).backward()
    theirs = twin.decoder.layers[0].multihead_attn.in_proj_weight.grad[24:]
    torch.testing.assert_close(gradient, theirs, **TOLERANCE)
    ours = model.encoder.layers[0].feed_forward.up.weight.grad
    torch.testing.assert_close(ours, twin.encoder.layers[0].linear1.weight.grad, **TOLERANCE)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_later_tokens_of_the_target_change_nothing(config: EncoderDecoderConfig) -> None:
    model = made(config)
    source, target = ids_of(2, 6), ids_of(2, 9)
    other = torch.cat([target[:, :5], ids_of(2, 4, seed=1)], dim=1)
    torch.testing.assert_close(model(source, target)[:, :5], model(source, other)[:, :5])
    assert not torch.allclose(model(source, target), model(source.flip(1), target), atol=1e-3)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_padding_of_the_source_changes_nothing(config: EncoderDecoderConfig) -> None:
    model = made(config)
    source, target = ids_of(1, 5), ids_of(1, 4, seed=1)
    alone = model(source, target)
    pad = torch.zeros(1, 3, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    torch.testing.assert_close(model(torch.cat([source, pad], dim=1), target, mask), alone)
    torch.testing.assert_close(model(torch.cat([pad, source], dim=1), target, mask.flip(1)), alone)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("sizes", [(4, 3, 2), (1,) * 9, (9,), (7, 1, 1)])
@pytest.mark.parametrize("gradients", [False, True])
def test_cached_is_uncached(
    config: EncoderDecoderConfig, sizes: Sequence[int], gradients: bool
) -> None:
    model = made(config)
    source, target = ids_of(2, 6), ids_of(2, 9, seed=1)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with torch.set_grad_enabled(gradients):
        cache = model.new_cache(9)
        parts, start = [], 0
        for size in sizes:
            part = target[:, start : start + size]
            given = (None, part) if start else (source, part, mask)
            parts.append(model(*given, cache=cache))
            start += size
        torch.testing.assert_close(torch.cat(parts, dim=1), model(source, target, mask))


def test_the_source_is_read_once() -> None:
    model = made(PAPER)
    read: list[int] = []
    model.encoder.register_forward_hook(lambda *_: read.append(1))
    kv = model.decoder.layers[0].cross_attention.kv
    kv.register_forward_hook(lambda *_: read.append(2))
    cache = model.new_cache()
    model(ids_of(1, 6), ids_of(1, 1), cache=cache)
    for _ in range(3):
        model(None, ids_of(1, 1), cache=cache)
    assert read == [1, 2]
    with pytest.raises(ValueError, match="4 tokens of a target that reads another source"):
        model(ids_of(1, 6), ids_of(1, 1), cache=cache)


def test_fork_and_reset() -> None:
    model = made(PAPER)
    source, target = ids_of(2, 6), ids_of(2, 9, seed=1)
    other = torch.cat([target[:, :5], ids_of(2, 4, seed=2)], dim=1)
    cache = model.new_cache()
    with torch.no_grad():
        model(source, target[:, :5], cache=cache)
        twin = cache.fork()
        one = model(None, target[:, 5:], cache=cache)
        two = model(None, other[:, 5:], cache=twin)
        torch.testing.assert_close(one, model(source, target)[:, 5:])
        torch.testing.assert_close(two, model(source, other)[:, 5:])
        cache.reset()
        again = model(source.flip(1), target, cache=cache)
        assert torch.equal(again, model(source.flip(1), target))


def test_left_padded_targets() -> None:
    model = made(PAPER)
    source, target = ids_of(2, 6), ids_of(2, 5, seed=1)
    mask = torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    cache = model.new_cache()
    with torch.no_grad():
        first = model(source, target[:, :4], cache=cache, target_mask=mask[:, :4])
        last = model(None, target[:, 4:], cache=cache, target_mask=mask[:, 4:])
        alone = model(source[1:], target[1:, 2:])
    torch.testing.assert_close(torch.cat([first, last], dim=1)[1:, 2:], alone)


@pytest.mark.parametrize("config", [PAPER, VARIANTS["relative"]], ids=["paper", "relative"])
def test_learns_to_turn_a_text_round(config: EncoderDecoderConfig) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(config)
    source = ids_of(4, 6)
    target = torch.cat([torch.ones(4, 1, dtype=torch.long), source.flip(1)], dim=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss = None
    for _ in range(40):
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    assert loss is not None
    assert loss.item() < 0.2


@pytest.mark.parametrize("config", [PAPER, VARIANTS["relative"]], ids=["paper", "relative"])
def test_watched_maps_are_the_definition(config: EncoderDecoderConfig) -> None:
    model = made(config)
    source, target = ids_of(2, 6), ids_of(2, 4, seed=1)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    inputs: dict[str, tuple[torch.Tensor, ...]] = {}

    def keep(name: str) -> Any:
        return lambda module, args: inputs.setdefault(name, args)

    for name, module in model.named_modules():
        if name.endswith(("attention", "attention.kv")):
            module.register_forward_pre_hook(keep(name))
    with torch.no_grad(), watch(model) as recording:
        model(source, target, mask)
    names = [one.name for one in recording]
    assert names == [
        "encoder.layers.0.attention",
        "encoder.layers.1.attention",
        "decoder.layers.0.attention",
        "decoder.layers.0.cross_attention",
        "decoder.layers.1.attention",
        "decoder.layers.1.cross_attention",
    ]
    for name in names:
        layer = model.get_submodule(name)
        x = inputs[name][0].double()
        scale, width = layer.scale, layer.head_dim

        def split(rows: torch.Tensor, width: int = width) -> torch.Tensor:
            return rows.unflatten(-1, (-1, width)).transpose(1, 2)

        def project(x: torch.Tensor, part: nn.Linear) -> torch.Tensor:
            return F.linear(x, part.weight.double(), part.bias.double())

        if name.endswith("cross_attention"):
            states = inputs[f"{name}.kv"][0].double()
            q, kv = split(project(x, layer.q)), split(project(states, layer.kv))
            k, v = kv.chunk(2, dim=1)
        else:
            q, k, v = split(project(x, layer.qkv)).chunk(3, dim=1)
        causal = name.startswith("decoder") and not name.endswith("cross_attention")
        bias = None
        if config is not PAPER and not name.endswith("cross_attention"):
            stack = model.get_submodule(name.split(".")[0])
            bias = stack.relative_bias(q.shape[2], k.shape[2]).double()
        seen = None if causal else mask[:, None, None].bool()
        _, weights, _ = attention(q, k, v, mask=seen, causal=causal, scale=scale, bias=bias)
        found = recording[name][:].double()
        real = torch.ones(2, x.shape[1], dtype=torch.bool)
        if name.startswith("encoder"):
            real = mask.bool()
        difference = (found - weights).transpose(1, 2)[real].abs().max()
        assert difference < 1e-6


def test_a_watched_translation_is_one_map_a_layer() -> None:
    model = made(PAPER)
    source = ids_of(1, 6)
    target = ids_of(1, 5, seed=1)
    with torch.no_grad():
        with watch(model) as steps:
            cache = model.new_cache()
            model(source, target[:, :1], cache=cache)
            for place in range(1, 5):
                model(None, target[:, place : place + 1], cache=cache)
        with watch(model) as whole:
            model(source, target)
    assert [one.name for one in steps] == [one.name for one in whole]
    for one, other in zip(steps, whole, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one[:], other[:], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": replace(PAPER.decoder, emb_dim=28)}, "emb_dim; got 24 and 28"),
        ({"decoder": replace(PAPER.decoder, vocab_size=9)}, "vocab_size while they share"),
        ({"decoder": replace(PAPER.decoder, bos_id=None)}, "begins every target"),
    ],
)
def test_sides_that_do_not_fit(change: dict[str, Config], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PAPER, **change)


def test_inputs_that_do_not_fit() -> None:
    model = made(VARIANTS["learned"])
    with pytest.raises(ValueError, match="no source"):
        model(None, ids_of(1, 3))
    with pytest.raises(ValueError, match="2 sources and 3 targets"):
        model(ids_of(2, 3), ids_of(3, 3))
    with pytest.raises(ValueError, match=r"33 tokens.*32 positions"):
        model(ids_of(1, 33), ids_of(1, 3))
    with pytest.raises(ValueError, match=r"33 tokens.*32 positions"):
        model(ids_of(1, 3), ids_of(1, 33))
    with pytest.raises(ValueError, match="from 0 to 40; got 3 to 99"):
        model(ids_of(1, 3), torch.tensor([[3, 99]]))
    with pytest.raises(ValueError, match=r"mask \(1, 2\).*ids \(1, 3\)"):
        model(ids_of(1, 3), ids_of(1, 3), torch.ones(1, 2))


def test_fresh_weights_know_nothing() -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(
        EncoderDecoderConfig.vaswani(500, 128, n_layers=6, n_heads=4, bos_id=1)
    ).eval()
    ids = torch.randint(0, 500, (4, 30))
    with torch.no_grad():
        loss = F.cross_entropy(model(ids, ids).flatten(0, 1), torch.randint(0, 500, (120,)))
    assert loss.item() == pytest.approx(torch.tensor(500.0).log().item(), abs=1)


def test_a_fresh_model_is_written_for_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(replace(PAPER, decoder=replace(PAPER.decoder, n_layers=3))).eval()
    write_folder(model, tmp_path)
    source, target = ids_of(2, 6), ids_of(2, 4)
    with torch.no_grad():
        theirs = reopened("marian", tmp_path)(input_ids=source, decoder_input_ids=target).logits
        torch.testing.assert_close(theirs, model(source, target), **TOLERANCE)
        again = read_folder(tmp_path)
        assert torch.equal(again(source, target), model(source, target))
    assert again.config == model.config


def test_the_base_model_of_the_paper() -> None:
    config = EncoderDecoderConfig.vaswani(37_000, bos_id=0)
    with torch.device("meta"):
        model = EncoderDecoder(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(63e6, rel=0.01)  # "65" million in table 3
    assert (config.encoder.hidden_dim, config.decoder.dropout) == (2048, 0.1)
