"""Layers that mix tokens without attention weights are listed, and nothing else is."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok

transformers = pytest.importorskip("transformers")

IDS = torch.randint(4, 100, (1, 9), generator=torch.Generator().manual_seed(1))
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip


def watched(model, *inputs):
    with torch.no_grad(), jumok.watch(model.eval()) as recording:
        model(*inputs)
    return recording


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class Convolution(nn.Module):
    """Mixes tokens, by no name that anybody knows."""

    def forward(self, x):
        return (x + x.roll(1, dims=1)) / 2


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x):
        return self.up(x)


class Layer(nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer, self.feed = mixer, Feed()

    def forward(self, x):
        return x + self.feed(self.mixer(x))


class ConvolutionLayer(nn.Module):
    """Another class than `Layer`, with the same kind of feed-forward part."""

    def __init__(self):
        super().__init__()
        self.convolution, self.feed = Convolution(), Feed()

    def forward(self, x):
        return x + self.feed(self.convolution(x))


def test_a_layer_among_layers_with_attention():
    layers = [Layer(Attention()), Layer(Convolution()), ConvolutionLayer(), Layer(Attention())]
    recording = watched(nn.Sequential(*layers), torch.randn(1, 5, 4))
    assert recording.names == ["0.mixer", "3.mixer"]
    assert recording.without_attention == {
        "1.mixer": "Convolution",
        "2.convolution": "Convolution",
    }
    words = "no attention weights here: Convolution (1.mixer, 2.convolution)"
    assert words in repr(recording)
    assert words in repr(jumok.report(recording))


class MLP(Feed):
    pass


def test_a_feed_forward_part_in_the_mixers_place_mixes_nothing():
    layers = nn.Sequential(Layer(Attention()), Layer(MLP()), Layer(Convolution()))
    found = watched(layers, torch.randn(1, 5, 4)).without_attention
    assert found == {"2.mixer": "Convolution"}


def test_what_did_not_run_or_has_no_mixer_is_not_listed():
    layers = nn.ModuleList([Layer(Attention()), Layer(Attention()), Feed()])
    layers.forward = lambda x: layers[2](layers[0](x))
    assert watched(layers, torch.randn(1, 5, 4)).without_attention == {}


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (
            "jamba",
            {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2,
             "expert_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4, "mamba_expand": 1,
             "use_mamba_kernels": False},
            {"layers.0.mamba": "JambaMambaMixer", "layers.2.mamba": "JambaMambaMixer"},
        ),
        (
            "qwen3_next",
            {"layer_types": ["linear_attention", "full_attention", "linear_attention"],
             "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
             "linear_value_head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1,
             "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "head_dim": 8},
            {"layers.0.linear_attn": "Qwen3NextGatedDeltaNet",
             "layers.2.linear_attn": "Qwen3NextGatedDeltaNet"},
        ),
        (
            "falcon_h1",
            {"num_hidden_layers": 1, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8,
             "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_expand": 1},
            {"layers.0.mamba": "FalconH1Mixer"},
        ),
        ("llama", {}, {}),
        ("t5", {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}, {}),
    ],
)  # fmt: skip
def test_models_that_have_both(kind, settings, expected):
    config = transformers.AutoConfig.for_model(kind, **SMALL | settings)
    model = transformers.AutoModel.from_config(config)
    inputs = (IDS, None, IDS) if kind == "t5" else (IDS,)
    recording = watched(model, *inputs)
    assert recording.without_attention == expected
    assert len(recording)


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("mamba", {"state_size": 4}, "MambaMixer mix tokens without attention weights"),
        ("fnet", {}, "FNetBasicFourierTransform mix tokens without"),
    ],
)
def test_a_model_without_any_attention_says_so(kind, settings, says):
    config = transformers.AutoConfig.for_model(kind, **SMALL | settings)
    model = transformers.AutoModel.from_config(config)
    with pytest.raises(ValueError, match=says):
        watched(model, IDS)


def test_it_is_saved(tmp_path):
    recording = watched(
        nn.Sequential(Layer(Attention()), Layer(Convolution())), torch.randn(1, 5, 4)
    )
    recording.save(tmp_path / "one.safetensors")
    again = jumok.open(tmp_path / "one.safetensors")
    assert again.without_attention == {"1.mixer": "Convolution"}
    assert "no attention weights here: Convolution (1.mixer)" in repr(again)
