"""transformers' attention functions: under any key, read by their arguments, checked by effect."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jumok
from jumok.lens.recording import mask_arrays
from jumok.masks import Causal, Padding

transformers = pytest.importorskip("transformers")

TOKENS = 24
IDS = torch.randint(4, 100, (2, TOKENS), generator=torch.Generator().manual_seed(1))
LEFT = torch.ones(2, TOKENS, dtype=torch.long)
LEFT[1, :5] = 0
RIGHT = LEFT.flip(-1)
WHOLE = torch.ones_like(LEFT)

SMALL = {
    "vocab_size": 100, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "head_dim": 16,
}  # fmt: skip


def with_lively_weights(model):
    """Weights that make attention choose."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=random)
            if parameter.ndim > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.3 * noise)
    return model.eval()


def build(kind, implementation="eager", **settings):
    names = {"head_dim"} - set(transformers.AutoConfig.for_model(kind).to_dict())
    options = {name: value for name, value in SMALL.items() if name not in names} | settings
    config = transformers.AutoConfig.for_model(kind, **options)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation=implementation)
    return with_lively_weights(model)


@pytest.fixture(scope="module")
def llama():
    return build("llama")


def watched(model, **inputs):
    """The recording of one forward, whose output is that of an unwatched one, bit by bit."""
    with torch.no_grad():
        plain = model(**inputs)[0]
        with jumok.watch(model) as recording:
            assert torch.equal(model(**inputs)[0], plain)
    return recording


def assert_same(found, weights, mask=WHOLE, atol=1e-6):
    """The real rows of a map are these weights."""
    assert found.shape == tuple(weights.shape)
    real = mask[:, -found.shape[2] :, None].bool()[:, None]
    got = torch.where(real, found[...], 0.0)
    torch.testing.assert_close(got, torch.where(real, weights.float(), 0.0), atol=atol, rtol=1e-4)


def assert_like_eager(model, mask=WHOLE, **inputs):
    """Every map is what the model's own eager function returns; watched and not."""
    inputs = {"input_ids": IDS, "attention_mask": mask} | inputs
    recording = watched(model, **inputs)
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    assert len(recording) == len(attentions)
    for found, weights in zip(recording, attentions, strict=True):
        assert_same(found, weights, mask)
    return recording


# -- eager: the model's own function ----------------------------------------------------------

KINDS = {
    "llama": {},
    "gpt2": {"scale_attn_by_inverse_layer_idx": True, "n_head": 6, "n_embd": 48, "n_layer": 2},
    "gemma2": {"sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 9},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    "qwen3": {},
    "deepseek_v3": {
        "num_key_value_heads": 6, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
        "head_dim": 8,
    },
    "llama4_text": {
        "attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 32,
        "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0],
    },
    "bert": {},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2},
}  # fmt: skip


@pytest.mark.parametrize("mask", [WHOLE, LEFT, RIGHT], ids=["whole", "left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_models_own_eager_function(kind, mask):
    model = build(kind, **KINDS[kind])
    recording = assert_like_eager(model, mask)
    for found in recording:
        call = found.call
        assert call.q.shape[-1] > 0  # not stored weights
        arrays = [*mask_arrays(call.mask), *([] if call.bias is None else [call.bias])]
        assert all(array.numel() <= 2 * TOKENS for array in arrays)  # the mask is a rule
        assert found.value_norms() is not None


def test_key_heads_are_not_repeated_and_values_may_be_narrower():
    model = build("deepseek_v3", **KINDS["deepseek_v3"])
    call = assert_like_eager(model)[0].call
    assert (call.q.shape[-1], call.v.shape[-1]) == (16, 12)
    assert assert_like_eager(build("llama"))[0].call.k.shape[1] == 2


def test_one_rule_for_all_layers(llama):
    recording = assert_like_eager(llama, LEFT)
    assert recording[0].call.mask is recording[1].call.mask
    assert isinstance(assert_like_eager(llama)[0].call.mask, Causal)


def test_padded_rows_are_what_ran(llama):
    """Eager hides by finfo.min: a row of nothing else attends evenly, and so the map says."""
    recording = watched(llama, input_ids=IDS, attention_mask=LEFT)
    with torch.no_grad():
        attentions = llama(IDS, attention_mask=LEFT, output_attentions=True).attentions
    for found, weights in zip(recording, attentions, strict=True):
        torch.testing.assert_close(found[...], weights, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(recording[0][1, :, 0], torch.full((6, TOKENS), 1 / TOKENS))
    entropy = recording[0].entropy()[1, :, 0]
    torch.testing.assert_close(entropy, torch.full((6,), math.log(TOKENS)))


def encoder_decoder(kind, **settings):
    options = {
        "vocab_size": 100, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 0,
        "decoder_start_token_id": 3, "eos_token_id": 2, "forced_eos_token_id": None,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **options | settings)
    return with_lively_weights(
        transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager")
    )


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_decoder_by_module_path(kind):
    model = encoder_decoder(kind)
    inputs = {"input_ids": IDS, "attention_mask": RIGHT, "decoder_input_ids": IDS[:, :7]}
    recording = watched(model, **inputs)
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    ways = {
        "t5": ("encoder.block.{}.layer.0.SelfAttention", "decoder.block.{}.layer.0.SelfAttention",
               "decoder.block.{}.layer.1.EncDecAttention"),
        "bart": ("model.encoder.layers.{}.self_attn", "model.decoder.layers.{}.self_attn",
                 "model.decoder.layers.{}.encoder_attn"),
    }[kind]  # fmt: skip
    assert len(recording) == 6
    found = (out.encoder_attentions, out.decoder_attentions, out.cross_attentions)
    for way, attentions in zip(ways, found, strict=True):
        for number, weights in enumerate(attentions):
            mask = RIGHT if weights.shape[2] == TOKENS else WHOLE
            assert_same(recording[way.format(number)], weights, mask)
    if kind == "t5":  # one position bias for all layers of a stack
        biases = [recording[ways[0].format(n)].call.bias for n in (0, 1)]
        assert biases[0].data_ptr() == biases[1].data_ptr()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
@torch.no_grad()
def test_generation_under_eager_is_one_full_forward(kind, cache):
    config = build(kind, **KINDS[kind]).config
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with_lively_weights(model)
    options = {} if cache == "dynamic" else {"cache_implementation": "static"}
    with jumok.watch(model) as recording:
        ids = model.generate(IDS, attention_mask=LEFT, max_new_tokens=6, do_sample=False, **options)
    mask = torch.cat([LEFT, torch.ones(2, 5, dtype=torch.long)], 1)
    attentions = model(ids[:, :-1], attention_mask=mask, output_attentions=True).attentions
    assert len(recording) == 2
    for found, weights in zip(recording, attentions, strict=True):
        assert_same(found, weights, mask, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = build("llama").to(dtype)
    recording = watched(model, input_ids=IDS, attention_mask=LEFT)
    with torch.no_grad():
        attentions = model(IDS, attention_mask=LEFT, output_attentions=True).attentions
    for found, weights in zip(recording, attentions, strict=True):
        assert found.call.q.dtype == dtype
        assert found.call.q.shape[-1] == 16
        assert_same(found, weights, LEFT, atol=0.03)


@torch.no_grad()
def test_under_autocast_what_was_multiplied_is_recorded(llama):
    with torch.autocast("cpu", torch.bfloat16), jumok.watch(llama) as recording:
        llama(IDS)
    assert recording[0].call.q.dtype == torch.bfloat16
    assert recording[0].call.q.shape[-1] == 16


def test_training_records_the_weights_before_dropout():
    model = build("llama", attention_dropout=0.4).train()
    with torch.no_grad():
        model.eval()
        expected = model(IDS, output_attentions=True).attentions[0]
        model.train()

    def gradients(is_watched):
        torch.manual_seed(3)
        model.zero_grad()
        if is_watched:
            with jumok.watch(model) as recording:
                model(IDS).last_hidden_state.square().sum().backward()
            torch.testing.assert_close(recording[0][...], expected, atol=1e-6, rtol=1e-4)
            assert recording[0].call.q.shape[-1] == 16
        else:
            model(IDS).last_hidden_state.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


# -- the table of functions -------------------------------------------------------------------


@pytest.fixture
def registered(llama):
    """Put a function into the table under a name, and give the model that runs it."""
    table = transformers.AttentionInterface._global_mapping
    before = dict(table)

    def register(function, name="mine", model=llama):
        table[name] = function
        twin = copy.deepcopy(model)
        for part in twin.modules():
            if hasattr(part, "config"):
                part.config._attn_implementation_internal = name
        return twin

    yield register
    table.clear()
    table.update(before)


def repeated(x, module):
    return x.repeat_interleave(module.num_key_value_groups, dim=1)


def attend(module, query, key, value, hidden=None, scale=None, sinks=None):
    """Output and weights of the textbook, for functions that people may register."""
    key, value = repeated(key, module), repeated(value, module)
    scores = query @ key.mT * (module.scaling if scale is None else scale)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        extra = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, extra], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2), weights


def later(query, key, first_on_first=False):
    shape = (query.shape[2], key.shape[2])
    return torch.ones(shape, dtype=torch.bool).triu(
        1 if first_on_first else 1 + shape[1] - shape[0]
    )


SINKS = torch.linspace(-2, 2, 6)

# Functions that heed other arguments than their names promise; none returns its weights.
WAYS = {
    "no mask at all": lambda m, q, k, v, mask, **options: (attend(m, q, k, v)[0], None),
    "causal by itself": lambda m, q, k, v, mask, scaling=None, **options: (
        attend(m, q, k, v, later(q, k))[0], None),
    "another scale": lambda m, q, k, v, mask, scaling=None, **options: (
        attend(m, q, k, v, later(q, k), scale=1.0)[0], None),
    "sinks of the layer": lambda m, q, k, v, mask, **options: (
        attend(m, q, k, v, later(q, k), sinks=m.sinks)[0], None),
    "heads joined": lambda m, q, k, v, mask, **options: (
        attend(m, q, k, v, later(q, k))[0].flatten(2), None),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_registered_function_is_read_by_its_effect(registered, way):
    model = registered(WAYS[way])
    for layer in model.layers:
        layer.self_attn.sinks = SINKS
    recording = watched(model, input_ids=IDS)
    for found in recording:
        call = found.call
        layer = next(layer for layer in model.layers).self_attn
        hidden = None if way == "no mask at all" else later(call.q, call.k)
        _, weights = attend(
            layer, call.q.double(), call.k.double(), call.v.double(), hidden,
            1.0 if way == "another scale" else None,
            SINKS.double() if way == "sinks of the layer" else None,
        )  # fmt: skip
        assert_same(found, weights)
        assert call.q.shape[-1] == 16


def test_a_name_is_never_registered_and_the_configuration_stays(llama):
    from transformers.modeling_utils import AttentionInterface

    before = dict(vars(AttentionInterface))
    keys = AttentionInterface().valid_keys()
    with torch.no_grad(), jumok.watch(llama):
        llama(IDS)
        assert AttentionInterface().valid_keys() == keys
    assert dict(vars(AttentionInterface)) == before
    assert llama.config._attn_implementation == "eager"


def test_weights_that_follow_from_no_reading_are_kept_and_announced(registered):
    mixing = torch.randn(6, 6, generator=torch.Generator().manual_seed(4)).softmax(-1)

    def talking_heads(module, query, key, value, mask, **options):
        _, weights = attend(module, query, key, value, later(query, key))
        weights = torch.einsum("bhij,gh->bgij", weights, mixing)
        return (weights @ repeated(value, module)).transpose(1, 2), weights

    model = registered(talking_heads)
    words = "`talking_heads` gives other weights than follow"
    with torch.no_grad(), pytest.warns(UserWarning, match=words), jumok.watch(model) as recording:
        model(IDS)
    call = recording[0].call
    _, weights = attend(model.layers[0].self_attn, call.q, call.k, call.v, later(call.q, call.k))
    assert_same(recording[0], torch.einsum("bhij,gh->bgij", weights, mixing))
    assert recording[0].value_norms() is not None
    assert recording.held_bytes > 2 * weights.nbytes


def test_a_function_that_changes_what_it_has_mixed_is_said(registered):
    def gated(module, query, key, value, mask, **options):
        output, weights = attend(module, query, key, value, later(query, key))
        return output * output.mean(-1, keepdim=True).sigmoid(), weights

    recording = watched(registered(gated), input_ids=IDS)
    call = recording[0].call
    assert call.bias is None
    assert recording[0].value_norms() is None
    assert "the attention function itself changes" in recording[0].value_note


def test_inside_a_function_nobody_understands_the_inner_taps_listen(registered):
    def packed(module, query, key, value, mask, **options):
        """Every second key only."""
        k, v = (repeated(x, module)[:, :, ::2] for x in (key, value))
        return F.scaled_dot_product_attention(query, k, v).transpose(1, 2), None

    recording = watched(registered(packed), input_ids=IDS)
    call = recording[0].call
    assert recording[0].shape == (2, 6, TOKENS, TOKENS // 2)
    torch.testing.assert_close(
        recording[0][...], (call.q @ call.k.mT / math.sqrt(16)).softmax(-1), atol=1e-6, rtol=1e-5
    )


def test_a_function_that_nobody_understands_is_said(registered):
    def estimate(module, query, key, value, mask, **options):
        features = F.elu(query) + 1, F.elu(repeated(key, module)) + 1
        both = features[1].mT @ repeated(value, module)
        return (features[0] @ both).transpose(1, 2), None

    model = registered(estimate)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="`estimate`, whose output does not follow"),
        jumok.watch(model),
    ):
        model(IDS)


def test_a_paged_cache_is_refused(llama):
    def paged(module, query, key, value, mask, cache=None, **options):
        return attend(module, query, key, value)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_key_value_groups, self.scaling = 1, 0.25

        def forward(self, x):
            table = transformers.AttentionInterface()
            table["mine"] = paged
            function = table.get_interface("mine", None)
            return function(self, x, x, x, None, cache=object())[0]

    with pytest.raises(ValueError, match=r"paged cache.*run the model without it"):
        watched(Model(), x=torch.randn(1, 2, 9, 4))


def test_a_function_that_is_looked_up_by_its_key_alone(llama):
    class Model(nn.Module):
        is_causal = False

        def forward(self, x):
            from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

            return ALL_ATTENTION_FUNCTIONS["sdpa"](self, x, x, x, None)[0]

    (found,) = watched(Model(), x=torch.randn(1, 2, 9, 4))
    q = found.call.q
    torch.testing.assert_close(found[...], (q @ q.mT / 2).softmax(-1), atol=1e-6, rtol=1e-5)


# -- sdpa -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [WHOLE, LEFT, RIGHT], ids=["whole", "left", "right"])
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "bert", "modernbert"])
def test_sdpa_has_the_weights_of_eager_and_its_own_lse(kind, mask):
    eager = build(kind, **KINDS[kind])
    model = build(kind, "sdpa", **KINDS[kind])
    recording = watched(model, input_ids=IDS, attention_mask=mask)
    with torch.no_grad():
        attentions = eager(IDS, attention_mask=mask, output_attentions=True).attentions
    for found, weights in zip(recording, attentions, strict=True):
        assert_same(found, weights, mask)
        assert found._source.call().lse is not None
        assert all(array.numel() <= 2 * TOKENS for array in mask_arrays(found.call.mask))
    if mask is WHOLE and kind == "llama":
        assert isinstance(recording[0].call.mask, Causal)
    if kind == "bert" and mask is not WHOLE:
        assert isinstance(recording[0].call.mask, Padding)


def test_a_position_bias_under_sdpa_hides_by_the_smallest_number():
    """Where a bias meets a mask, SDPA is given finfo.min: rows of padding attend evenly."""

    class Model(nn.Module):
        is_causal = False

        def forward(self, x, mask, bias):
            table = transformers.AttentionInterface()
            function = table.get_interface("sdpa", None)
            return function(self, x, x, x, mask, position_bias=bias)[0]

    x = torch.randn(2, 2, 9, 4)
    bias = torch.randn(1, 2, 9, 9)
    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool).tril()
    mask[1, :, :, :3] = False
    (found,) = watched(Model(), x=x, mask=mask, bias=bias)
    scores = (x @ x.mT / 2 + bias).masked_fill(~mask, torch.finfo(torch.float32).min)
    torch.testing.assert_close(found[...], scores.softmax(-1), atol=1e-6, rtol=1e-5)


# -- flash attention --------------------------------------------------------------------------


def flash(q, k, v, attention_mask, query_length, is_causal, softmax_scale=None,
          sliding_window=None, softcap=None, s_aux=None, position_ids=None, **kwargs):  # fmt: skip
    """What `_flash_attention_forward` computes, on a CPU: sequence by sequence, unpadded."""
    out = torch.zeros(*q.shape[:3], v.shape[-1])
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    for b in range(len(q)):
        keys = torch.arange(k.shape[1])
        queries = torch.arange(q.shape[1])
        if attention_mask is not None:
            keys = attention_mask[b].nonzero()[:, 0]
            queries = attention_mask[b, -query_length:].nonzero()[:, 0]
        parts = [(queries, keys)]
        if attention_mask is None and position_ids is not None and len(q) == 1:
            starts = [*(position_ids[b] == 0).nonzero()[:, 0].tolist(), k.shape[1]]
            parts = [(torch.arange(*ends),) * 2 for ends in itertools.pairwise(starts)]
        for rows, columns in parts:
            scores = torch.einsum("ihd,jhd->hij", q[b, rows], k[b, columns]) * softmax_scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            place = torch.arange(len(rows))[:, None] + len(columns) - len(rows)
            distance = torch.arange(len(columns)) - place
            hidden = (distance > 0) & torch.tensor(is_causal)
            if sliding_window is not None and k.shape[1] > sliding_window:
                hidden = hidden | (distance.abs() > sliding_window - 1)
            scores = scores.masked_fill(hidden, -math.inf)
            if s_aux is not None:
                sinks = s_aux.reshape(-1, 1, 1).expand(-1, len(rows), 1)
                scores = torch.cat([scores, sinks], -1)
            weights = scores.softmax(-1)[..., : len(columns)]
            out[b, rows] = torch.einsum("hij,jhd->ihd", weights, v[b, columns])
    return out


@pytest.fixture
def flash_model(monkeypatch):
    """Makes a model run transformers' own flash function, over the stand-in for the kernel."""
    module = pytest.importorskip("transformers.integrations.flash_attention")
    monkeypatch.setattr(module, "_flash_attention_forward", flash)

    def make(kind, **settings):
        model = build(kind, **settings)
        for part in model.modules():
            if hasattr(part, "config"):
                part.config._attn_implementation_internal = "flash_attention_2"
        return model

    return make


@pytest.mark.parametrize("mask", [WHOLE, LEFT, RIGHT], ids=["whole", "left", "right"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss", "bert", "deepseek_v3"])
def test_flash_attention(flash_model, kind, mask):
    model = flash_model(kind, **KINDS[kind])
    recording = watched(model, input_ids=IDS, attention_mask=mask)
    eager = build(kind, **KINDS[kind])
    with torch.no_grad():
        attentions = eager(IDS, attention_mask=mask, output_attentions=True).attentions
    for found, weights in zip(recording, attentions, strict=True):
        assert_same(found, weights, mask, atol=1e-5)
        assert found.call.q.shape[-1] > 0


def test_flash_attention_of_packed_sequences(flash_model):
    model = flash_model("llama")
    lengths = [9, 4, 11]
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    recording = watched(model, input_ids=IDS[:1], position_ids=places)
    apart = [watched(build("llama"), input_ids=ids) for ids in IDS[:1].split(lengths, 1)]
    for number, found in enumerate(recording):
        whole = torch.block_diag(*(part[number][0, 3] for part in apart))
        torch.testing.assert_close(found[0, 3], whole, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_flash_attention_while_it_generates(flash_model, llama):
    model = transformers.LlamaForCausalLM._from_config(llama.config, attn_implementation="eager")
    with_lively_weights(model).config._attn_implementation_internal = "flash_attention_2"
    with jumok.watch(model) as recording:
        ids = model.generate(IDS, attention_mask=LEFT, max_new_tokens=6, do_sample=False)
    mask = torch.cat([LEFT, torch.ones(2, 5, dtype=torch.long)], 1)
    model.config._attn_implementation_internal = "eager"
    attentions = model(ids[:, :-1], attention_mask=mask, output_attentions=True).attentions
    for found, weights in zip(recording, attentions, strict=True):
        assert_same(found, weights, mask, atol=1e-5)


# -- FlexAttention ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flex_attention_stays_compiled():
    """Block masks become rules, and the outputs are those of the compiled kernel."""
    settings = {
        "sliding_window": 8, "attn_logit_softcapping": 2.0, "num_hidden_layers": 1,
        "layer_types": ["sliding_attention"],
    }  # fmt: skip
    model, eager = build("gemma2", "flex_attention", **settings), build("gemma2", **settings)
    recording = watched(model, input_ids=IDS, attention_mask=LEFT)
    with torch.no_grad():
        attentions = eager(IDS, attention_mask=LEFT, output_attentions=True).attentions
    for found, weights in zip(recording, attentions, strict=True):
        assert_same(found, weights, LEFT, atol=1e-5)
        assert found.call.softcap == 2.0
        assert all(array.numel() <= 2 * TOKENS for array in mask_arrays(found.call.mask))
