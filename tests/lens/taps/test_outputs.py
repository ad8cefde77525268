"""Where an attention's output goes: W_O, found by watching, or what stands in between."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok

HEADS, WIDTH, MADE = 4, 4, 24  # heads, head_dim, output width


class Attention(nn.Module):
    """Attention whose output goes through `between`, and then through `project`."""

    def __init__(self, project=None, between=None):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, MADE)
        self.between = between
        self.project = self.out if project is None else project

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = F.dropout(y, 0.1, self.training)
        if self.between is not None:
            y = self.between(y)
        y = self.project(y)
        return y + 1  # as a residual sum takes it


def watched(model, x=None):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1)) if x is None else x
    with torch.no_grad():
        plain = model(x)
        with jumok.watch(model) as recording:
            assert torch.equal(model(x), plain)
    (found,) = recording
    return found


def norms_through(found, matrix):
    """‖v_j W_O^(h)‖ of every head, with the matrix (output width, heads · head_dim)."""
    v = found.call.v.double()
    parts = matrix.double().unflatten(1, (HEADS, WIDTH))
    return torch.stack([(v[:, h] @ parts[:, h].T).norm(dim=-1) for h in range(HEADS)], 1).float()


def assert_goes_through(found, matrix, **tolerance):
    torch.testing.assert_close(found.value_norms(), norms_through(found, matrix), **tolerance)


# -- one linear map ---------------------------------------------------------------------------


def projections():
    weight = torch.randn(MADE, 16, generator=torch.Generator().manual_seed(2))
    heads = weight.T.reshape(HEADS, WIDTH, MADE)
    bias = torch.randn(MADE)

    def by_heads(y):
        return y.unflatten(-1, (HEADS, WIDTH))

    return weight, {
        "linear": lambda y: F.linear(y, weight, bias),
        "matmul": lambda y: y @ weight.T,
        "addmm": lambda y: torch.addmm(bias, y.reshape(-1, 16), weight.T).view(*y.shape[:2], -1),
        "mm": lambda y: torch.mm(y.reshape(-1, 16), weight.T),
        "einsum": lambda y: torch.einsum("bti,oi->bto", y, weight),
        "einsum of heads": lambda y: torch.einsum("bthd,hde->bte", by_heads(y), heads),
        "einsum, weight first": lambda y: torch.einsum(
            "ehd,bthd->bet", weight.reshape(MADE, HEADS, WIDTH), by_heads(y)
        ),
        "einsum of heads apart": lambda y: torch.einsum(
            "bhtd,dhe->bte", by_heads(y).transpose(1, 2), heads.transpose(0, 1)
        ),
    }


@pytest.mark.parametrize("how", projections()[1])
def test_the_linear_map_is_found_however_it_is_written(how):
    weight, ways = projections()
    found = watched(Attention(ways[how]).eval())
    assert_goes_through(found, weight)
    assert found.value_note == "the first linear map that takes the output"


def test_the_linear_map_of_transformers_conv1d_is_found():
    conv = pytest.importorskip("transformers").pytorch_utils.Conv1D(MADE, 16)
    assert_goes_through(watched(Attention(conv).eval()), conv.weight.T)


def test_a_number_between_counts():
    model = Attention(between=lambda y: 3.0 * y / 2).eval()
    assert_goes_through(watched(model), 1.5 * model.out.weight)


def test_a_low_rank_projection_is_one_map():
    down, up = nn.Linear(16, 3, bias=False), nn.Linear(3, MADE)
    found = watched(Attention(nn.Sequential(down, up)).eval())
    assert_goes_through(found, up.weight @ down.weight)


def test_a_head_after_the_projection_is_no_part_of_it():
    first, second = nn.Linear(16, 16), nn.Linear(16, MADE)
    assert_goes_through(watched(Attention(nn.Sequential(first, second)).eval()), first.weight)


# -- adapters ---------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A linear layer and low-rank adapters beside it, as peft writes them (Hu et al. 2021)."""

    def __init__(self, base, scalings, adapters_first=False):
        super().__init__()
        self.base_layer, self.scalings, self.first = base, scalings, adapters_first
        self.down = nn.ModuleList(nn.Linear(16, 2, bias=False) for _ in scalings)
        self.up = nn.ModuleList(nn.Linear(2, MADE, bias=False) for _ in scalings)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        if self.first:
            return self.adapter(0, x) + self.base_layer(x)
        result = self.base_layer(x)
        for number in range(len(self.scalings)):
            result = result + self.adapter(number, x.to(self.down[number].weight.dtype))
        return result

    def adapter(self, number, x):
        return self.up[number](self.down[number](self.dropout(x))) * self.scalings[number]

    def whole(self):
        base = self.base_layer.weight
        base = base if base.shape == (MADE, 16) else base.T
        return base + sum(
            s * up.weight @ down.weight
            for s, up, down in zip(self.scalings, self.up, self.down, strict=True)
        )


@pytest.mark.parametrize("scalings", [[0.5], [2.0, -0.25]], ids=["one adapter", "two"])
@pytest.mark.parametrize("base", ["linear", "conv1d"])
def test_adapters_beside_the_projection_are_part_of_it(base, scalings):
    if base == "linear":
        base = nn.Linear(16, MADE)
    else:
        base = pytest.importorskip("transformers").pytorch_utils.Conv1D(MADE, 16)
    project = Adapted(base, scalings)
    found = watched(Attention(project).eval())
    assert_goes_through(found, project.whole())
    assert found.value_note == f"the sum of {1 + len(scalings)} linear maps that take the output"


def test_an_adapter_that_comes_first_is_part_of_it():
    project = Adapted(nn.Linear(16, MADE), [0.5], adapters_first=True)
    assert_goes_through(watched(Attention(project).eval()), project.whole())


def test_an_adapted_projection_that_was_trained_since_is_not_used():
    project = Adapted(nn.Linear(16, MADE), [0.5])
    found = watched(Attention(project).eval())
    with torch.no_grad():
        project.up[0].weight.mul_(2)
    assert found.value_norms() is None
    assert "changed after the recording" in found.value_note


class Decomposed(Adapted):
    """An adapter of directions, with lengths of its own (DoRA, Liu et al. 2024), as in peft."""

    def __init__(self):
        super().__init__(nn.Linear(16, MADE), [0.5])
        self.length = nn.Parameter(torch.rand(1, MADE) + 0.5)

    def forward(self, x):
        result = self.base_layer(x)
        bare = result - self.base_layer.bias
        return result + ((self.length - 1) * bare + self.length * self.adapter(0, x))

    def whole(self):
        return self.length.T * super().whole()


@pytest.mark.parametrize("tokens", [5, 1])
def test_an_adapter_that_scales_every_row_is_part_of_it(tokens):
    project = Decomposed()
    found = watched(Attention(project).eval(), torch.randn(1, tokens, 16))
    assert_goes_through(found, project.whole())


# -- quantised --------------------------------------------------------------------------------


class Rounded(nn.Module):
    """Weights and activations of 8 bits, which no linear function of torch multiplies."""

    def __init__(self, shows):
        super().__init__()
        weight = torch.randn(MADE, 16, generator=torch.Generator().manual_seed(2))
        self.scale = weight.abs().max() / 127
        self.whole = (weight / self.scale).round() * self.scale
        if shows:
            self.weight = lambda: self.whole

    def forward(self, x):
        step = x.abs().amax(dim=-1, keepdim=True) / 127
        rounded = torch.round(x / step)
        return (rounded[..., None, :] * (self.whole / self.scale)).sum(-1) * self.scale * step


def test_a_quantised_module_that_shows_its_weight_is_recognised_by_its_effect():
    project = Rounded(shows=True)
    assert_goes_through(watched(Attention(project).eval()), project.whole)


def test_a_quantised_module_that_shows_no_weight_is_said():
    found = watched(Attention(Rounded(shows=False)).eval())
    assert found.value_norms() is None
    assert "`abs` stands between" in found.value_note


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_weight_that_is_dequantised_on_the_way_is_found():
    packed = torch.quantize_per_channel(
        torch.randn(MADE, 16), torch.rand(MADE) + 0.01, torch.zeros(MADE), 0, torch.qint8
    )
    found = watched(Attention(lambda y: F.linear(y, packed.dequantize())).eval())
    assert_goes_through(found, packed.dequantize())


class Hidden(nn.Module):
    """A kernel that no function mode sees, with a weight like a quantised module's."""

    def __init__(self, shows):
        super().__init__()
        self.packed = torch.quantize_per_tensor(torch.randn(MADE, 16), 0.02, 0, torch.qint8)
        if shows:
            self.weight = lambda: self.packed

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return F.linear(x, self.packed.dequantize())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_kernel_that_nobody_sees_is_recognised_by_its_effect_or_said():
    project = Hidden(shows=True)
    assert_goes_through(watched(Attention(project).eval()), project.packed.dequantize())
    found = watched(Attention(Hidden(shows=False)).eval())
    assert found.value_norms() is None
    assert "Hidden takes the attention's output" in found.value_note


# -- what stands between ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("between", "says"),
    [
        (lambda y: y * torch.sigmoid(y), "`sigmoid`"),
        (lambda y: y * torch.full((2, 5, 1), 0.5), "`mul`"),
        (lambda y: y.mul_(torch.full((2, 5, 1), 0.5)), "`mul`"),
        (nn.LayerNorm(16), "`layer_norm`"),
        (lambda y: torch.cat([y, y], -1)[..., :16], "`cat`"),
        (lambda y: F.dropout(y, 0.5, True), "`dropout`"),
    ],
    ids=["gate of itself", "gate", "gate in place", "norm", "joined", "dropout"],
)
def test_a_gate_or_normalisation_before_the_projection_is_said(between, says):
    torch.manual_seed(0)
    model = Attention(between=between).eval()
    with torch.no_grad(), jumok.watch(model) as recording:
        model(torch.randn(2, 5, 16))
    assert recording[0].value_norms() is None
    assert says in recording[0].value_note


def test_heads_that_are_joined_otherwise_are_said():
    class Interleaved(Attention):
        def forward(self, x):
            q, k, v = (p.unflatten(-1, (4, 4)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
            return self.out(F.scaled_dot_product_attention(q, k, v).permute(0, 2, 3, 1).flatten(2))

    class Mixing(Attention):
        def forward(self, x):
            q, k, v = (p.unflatten(-1, (4, 4)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            return self.out(y.flatten(2).mT)

    for model in (Interleaved().eval(), Mixing().eval()):
        found = watched(model, torch.randn(2, 16, 16))
        assert found.value_norms() is None
        assert "side by side" in found.value_note


def test_a_linear_map_of_something_else_is_said():
    found = watched(Attention(lambda y: F.linear(y.unflatten(-1, (8, 2)), torch.ones(3, 2))).eval())
    assert found.value_norms() is None
    assert "takes 2 numbers, not heads · head_dim = 16" in found.value_note


def test_a_projection_that_was_trained_since_is_not_used():
    model = Attention().eval()
    with jumok.watch(model) as recording:
        loss = model(torch.randn(2, 5, 16)).square().sum()
    assert recording[0].value_norms() is not None
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert recording[0].value_norms() is None
    assert "changed after the recording" in recording[0].value_note


def test_without_a_projection_the_values_themselves_count():
    found = watched(Attention(lambda y: y).eval())
    torch.testing.assert_close(found.value_norms(), found.call.v.norm(dim=-1))
    assert "no linear map was applied" in found.value_note
