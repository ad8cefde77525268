"""The Transformer's own laws: causality, padding, training, configuration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from jumok.model.transformer import Config, Decoder, Encoder, Learned, Rotary
from jumok.positions import YarnScaling

GPT = Config(vocab_size=41, emb_dim=24, n_layers=2, n_heads=4, n_kv_heads=2, init_std=0.3)
CLASSIC = replace(
    GPT,
    n_kv_heads=4,
    positions=Learned(),
    norm="layer",
    feed_forward="gelu_tanh",
    qkv_bias=True,
    output_bias=True,
    feed_forward_bias=True,
    context=32,
)
VARIANTS = {
    "llama": GPT,
    "gpt2": CLASSIC,
    "post-norm": replace(CLASSIC, norm_place="post", feed_forward="relu"),
    "windows": replace(GPT, windows=(3, None)),
    "head-norm": replace(GPT, head_norm=True, head_dim=10, tied_head=False),
    "no-positions": replace(GPT, positions=None),
    "yarn": replace(GPT, positions=Rotary(1e4, YarnScaling(4.0, 8))),
}


def ids_of(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 41, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def decoder(config: Config) -> Decoder:
    torch.manual_seed(0)
    return Decoder(config).eval()


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_later_tokens_change_nothing(config: Config) -> None:
    model = decoder(config)
    ids = ids_of(2, 12)
    other = torch.cat([ids[:, :7], ids_of(2, 5, seed=1)], dim=1)
    assert not torch.equal(ids, other)
    assert torch.equal(model(ids)[:, :7], model(other)[:, :7])


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_padding_on_either_side_changes_nothing(config: Config) -> None:
    model = decoder(config)
    ids = ids_of(1, 4)
    alone = model(ids)
    left = torch.cat([torch.zeros(1, 2, dtype=torch.long), ids], dim=1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    torch.testing.assert_close(model(left, mask)[:, 2:], alone)
    torch.testing.assert_close(model(left, mask.bool())[:, 2:], alone)
    right = torch.cat([ids, torch.zeros(1, 2, dtype=torch.long)], dim=1)
    torch.testing.assert_close(model(right, mask.flip(1))[:, :4], alone)


def test_a_row_of_padding_only_is_finite() -> None:
    for model in (decoder(GPT), Encoder(GPT).eval()):
        ids, mask = ids_of(2, 5), torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
        output = model(ids, mask)
        assert torch.isfinite(output).all()
        torch.testing.assert_close(output[:1], model(ids[:1]))
        output.sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_an_encoder_reads_both_ways() -> None:
    torch.manual_seed(0)
    model = Encoder(GPT).eval()
    ids = ids_of(1, 6)
    changed = ids.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 41
    assert (model(ids) - model(changed))[0, 0].abs().max() > 1e-3
    unordered = Encoder(replace(GPT, positions=None)).eval()
    order = torch.tensor([3, 1, 0, 5, 2, 4])
    torch.testing.assert_close(unordered(ids[:, order]), unordered(ids)[:, order])


def test_window_limits_what_is_seen() -> None:
    model = decoder(replace(GPT, n_layers=1, windows=(3,)))
    ids = ids_of(1, 8)
    changed = ids.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 41
    moved = (model(ids) - model(changed)).abs().amax(dim=-1)[0]
    assert (moved > 1e-4).tolist() == [False, False, True, True, True, False, False, False]


def test_a_window_of_an_encoder_reaches_both_ways() -> None:
    torch.manual_seed(0)
    model = Encoder(replace(GPT, n_layers=1, windows=(3,))).eval()
    ids = ids_of(1, 8)
    changed = ids.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 41
    moved = (model(ids) - model(changed)).abs().amax(dim=-1)[0]
    assert (moved > 1e-4).tolist() == [False, True, True, True, True, True, False, False]


def test_inverse_layer_scale() -> None:
    model = Decoder(replace(GPT, n_layers=3, inverse_layer_scale=True))
    scales = [layer.attention.scale for layer in model.layers]
    assert scales == pytest.approx([6**-0.5, 6**-0.5 / 2, 6**-0.5 / 3])


def test_logits_for_the_last_tokens_only() -> None:
    model = decoder(GPT)
    ids = ids_of(2, 9)
    torch.testing.assert_close(model(ids, last=2), model(ids)[:, -2:])
    torch.testing.assert_close(model(ids, last=20), model(ids))


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_overfits_a_short_text(config: Config) -> None:
    torch.manual_seed(0)
    model = Decoder(replace(config, init_std=0.02, dropout=0.01))
    ids = ids_of(1, 17)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = loss = None
    for _ in range(120):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits[0], ids[0, 1:])
        first = loss.item() if first is None else first
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    assert first == pytest.approx(torch.tensor(41.0).log().item(), abs=0.15)
    assert loss is not None
    assert loss.item() < 0.1


def test_fresh_weights() -> None:
    torch.manual_seed(0)
    config = Config(vocab_size=500, emb_dim=128, n_layers=8, n_heads=4, qkv_bias=True)
    model = Decoder(config)
    block = model.layers[3]
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not block.attention.qkv.bias.any()
    for added in (block.attention.output, block.feed_forward.down):
        assert added.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


def test_dropout_only_while_training() -> None:
    torch.manual_seed(0)
    model = Decoder(replace(GPT, dropout=0.3, attention_dropout=0.3))
    ids = ids_of(1, 5)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = decoder(GPT)
    ids = ids_of(2, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 0] = False
    exact = model(ids, mask)
    output = model.to(dtype)(ids, mask)
    assert output.dtype == dtype
    bound = 1e-4 if dtype == torch.float64 else 0.2
    assert (output[mask].float() - exact[mask]).abs().max() < bound * exact.std()


def test_autocast() -> None:
    model = decoder(GPT)
    ids = ids_of(1, 9)
    exact = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(ids)
    assert (output.float() - exact).abs().max() < 0.2 * exact.std()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"emb_dim": 25}, "emb_dim=25.*n_heads=4"),
        ({"norm": "batch"}, "norm='batch'.*rms, layer"),
        ({"feed_forward": "tanh"}, "feed_forward='tanh'"),
        ({"norm_place": "middle"}, "norm_place='middle'"),
        ({"windows": (3,)}, "1 windows for n_layers=2"),
        ({"n_layers": 0}, "n_layers=0"),
    ],
)
def test_configurations_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    settings = {"vocab_size": 41, "emb_dim": 24, "n_layers": 2, "n_heads": 4, **changes}
    with pytest.raises(ValueError, match=message):
        Config(**settings)  # type: ignore[arg-type]


def test_configuration_is_frozen_and_settles_its_defaults() -> None:
    config = Config(vocab_size=41, emb_dim=24, n_layers=2, n_heads=4)
    assert (config.n_kv_heads, config.head_dim, config.hidden_dim) == (4, 6, 96)
    assert config.layer_windows == (None, None)
    assert config == replace(config, windows=(None, None))
    assert hash(config) == hash(Config(vocab_size=41, emb_dim=24, n_layers=2, n_heads=4))
    with pytest.raises(AttributeError):
        config.emb_dim = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (torch.tensor([1, 2]), None, r"\(batch, tokens\); got torch.int64 \(2,\)"),
        (torch.ones(1, 2), None, "got torch.float32"),
        ([[1, 2]], None, "got list"),
        (torch.tensor([[1, 41]]), None, "from 0 to 40; got 1 to 41"),
        (torch.tensor([[-1, 4]]), None, "from 0 to 40; got -1 to 4"),
        (torch.tensor([[1, 2]]), torch.ones(1, 3), r"mask \(1, 3\).*ids \(1, 2\)"),
        (torch.tensor([[1, 2]]), torch.tensor([[2, 1]]), "only 1 .* and 0"),
        (torch.zeros(1, 33, dtype=torch.long), None, "33 tokens.*32 positions"),
    ],
)
def test_inputs_that_do_not_fit(ids: torch.Tensor, mask: torch.Tensor | None, message: str) -> None:
    for model in (decoder(CLASSIC), Encoder(CLASSIC).eval()):
        with pytest.raises(ValueError, match=message):
            model(ids, mask)


def test_pad_numbered_positions_belong_to_encoders() -> None:
    with pytest.raises(ValueError, match="Encoder"):
        Decoder(replace(CLASSIC, positions=Learned(1)))


def test_pooler_and_token_types_must_be_there() -> None:
    model = Encoder(GPT).eval()
    with pytest.raises(ValueError, match="pooler"):
        model.pooled(model(ids_of(1, 3)))
    with pytest.raises(ValueError, match="token types"):
        model(ids_of(1, 3), token_types=torch.zeros(1, 3, dtype=torch.long))


def test_no_tokens() -> None:
    model = decoder(GPT)
    assert model(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 41)


@pytest.mark.parametrize("window", [None, 3])
def test_documents_in_one_row_do_not_see_each_other(window: int | None) -> None:
    """With rotary positions each has the logits that it has alone."""
    torch.manual_seed(0)
    model = Decoder(replace(GPT, windows=(window, None))).double().eval()
    ids = torch.randint(41, (2, 12))
    documents = torch.tensor([[0] * 5 + [1] * 7, [3] * 2 + [4] * 9 + [5]])
    with torch.no_grad():
        together = model(ids, documents=documents)
        for row, borders in enumerate(([0, 5, 12], [0, 2, 11, 12])):
            for begin, end in itertools.pairwise(borders):
                alone = model(ids[row : row + 1, begin:end])
                assert (
                    together[row, begin:end] - alone[0]
                ).abs().max() < 1e-6  # phases are float32
    with pytest.raises(ValueError, match=r"documents \(2, 11\): of the shape of ids \(2, 12\)"):
        model(ids, documents=documents[:, 1:])
    with pytest.raises(ValueError, match="without a cache"):
        model(ids, documents=documents, cache=model.new_cache())
