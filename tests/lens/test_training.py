"""Watching a model that trains: no gradient bit changes, and nothing is recorded twice."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import jumok

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 60,
}  # fmt: skip
IDS = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))


def llama(implementation):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, attention_dropout=0.2, attn_implementation=implementation
    )
    return transformers.LlamaForCausalLM(config).train()


def bert(implementation):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, attn_implementation=implementation)
    return transformers.BertForMaskedLM(config).train()


class Own(nn.Module):
    """nn.MultiheadAttention and nn.TransformerEncoderLayer, with dropout."""

    def __init__(self, implementation):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(60, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.2, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.MultiheadAttention(32, 4, dropout=0.2, batch_first=True)
        self.need_weights = implementation == "eager"

    def forward(self, ids):
        x = self.layers(self.embedding(ids))
        return self.last(x, x, x, need_weights=self.need_weights)[0]


def gradients(model, context, backward_inside=True):
    model.zero_grad()
    torch.manual_seed(5)

    def loss():
        out = model(IDS)
        return (out if isinstance(out, torch.Tensor) else out.logits).square().mean()

    if context is None:
        loss().backward()
        return None, [parameter.grad.clone() for parameter in model.parameters()]
    with context as recording:
        total = loss()
        if backward_inside:
            total.backward()
    if not backward_inside:
        total.backward()
    return recording, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("build", [llama, bert, Own])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("options", [{}, {"keep": "qk"}, {"measure": ["entropy"]}, {"to": "disk"}])
def test_no_gradient_bit_changes(build, implementation, options):
    model = build(implementation)
    _, plain = gradients(model, None)
    recording, watched = gradients(model, jumok.watch(model, **options))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert len(recording) == (3 if build is Own else 2)
    if "measure" not in options:
        call = recording[0].record
        assert not any(x.requires_grad for x in (call.q, call.k, call.v) if x is not None)
        # Weights are those before dropout.
        torch.testing.assert_close(recording[0][...].sum(-1), torch.ones(2, 4, 9))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["backward after", "backward inside"])
def test_checkpointing_gives_no_map_twice(reentrant, inside):
    model = llama("sdpa")
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    _, plain = gradients(model, None)
    recording, watched = gradients(model, jumok.watch(model), inside)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert recording.names == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_around_modules_and_functions(reentrant):
    class Checkpointed(Own):
        def forward(self, ids):
            x = self.embedding(ids)
            for layer in self.layers.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return checkpoint(lambda y: self.last(y, y, y)[0], x, use_reentrant=reentrant)

    model = Checkpointed("sdpa")
    _, plain = gradients(model, None)
    recording, watched = gradients(model, jumok.watch(model))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert recording.names == ["layers.layers.0.self_attn", "layers.layers.1.self_attn", "last"]


@torch.no_grad()
def test_shared_modules_keep_every_call():
    torch.manual_seed(0)
    config = transformers.AlbertConfig(**SIZES, embedding_size=16)
    model = transformers.AlbertModel(config).eval()
    with jumok.watch(model) as recording, jumok.watch(model, measure=["entropy"]) as measured:
        model(IDS)
    assert len(recording) == len(measured) == 2
    assert [name.partition("#")[2] for name in recording.names] == ["", "1"]
    assert not torch.equal(recording[0][...], recording[1][...])


def test_layers_in_different_numbers():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.MultiheadAttention(32, 4, batch_first=True)
            self.two = nn.MultiheadAttention(32, 4, batch_first=True).bfloat16()
            self.three = nn.MultiheadAttention(32, 4, batch_first=True).double()

        def forward(self, x):
            for layer in (self.one, self.two, self.three):
                x = x.to(layer.in_proj_weight.dtype)
                x = layer(x, x, x, need_weights=False)[0]
            return x

    model = Mixed().eval()
    with torch.no_grad(), jumok.watch(model, to="disk") as recording:
        model(torch.randn(2, 7, 32))
    kinds = [found.call.q.dtype for found in recording]
    assert kinds == [torch.float32, torch.bfloat16, torch.float64]
    assert all(found[...].dtype == torch.float32 for found in recording)
