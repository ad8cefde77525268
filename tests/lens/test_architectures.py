"""`watch` on every kind of architecture, compared with the model's own eager weights.

The page docs/architectures.md does the same for all of transformers (scripts/architectures).
"""

import pytest

from architectures.compare import TOLERANCE, check
from jumok.lens.call import AttentionCall
from jumok.lens.recording import Recording

transformers = pytest.importorskip("transformers")

DECODERS = (
    "gpt2 gpt_neox gptj opt bloom llama mistral mixtral qwen2 qwen3 gemma gemma2 gemma3_text phi3 "
    "falcon gpt_oss deepseek_v3 cohere2 olmo2 stablelm"
)
ENCODERS = "bert roberta distilbert electra deberta-v2 modernbert"
BOTH = "t5 bart marian pegasus whisper"
IMAGES_AND_SOUND = "vit dinov2 clip siglip wav2vec2"
# Two streams, shared modules, windows of an image, layers without attention, sinks beside the
# softmax, deformable attention, an ensemble that returns no weights.
SPECIAL = "xlnet lxmert swin jamba granite_swa rt_detr_v2 sam_vision_model"

# How many attention calls a tiny model of two layers makes, where it is not one a layer.
CALLS = {"t5": 6, "bart": 6, "marian": 6, "pegasus": 6, "whisper": 6, "clip": 4, "siglip": 5}


@pytest.mark.parametrize(
    "architecture", [*DECODERS.split(), *ENCODERS.split(), *BOTH.split(), *IMAGES_AND_SOUND.split()]
)
def test_every_weight_is_that_of_eager(architecture):
    result = check(architecture)
    assert result.why_not is None
    assert result.reference == CALLS.get(architecture, 2)
    assert result.spread > 0.1  # far from uniform: there is something to get wrong
    assert [run.run for run in result.runs] == ["eager", "default"]
    for run in result.runs:
        assert run.failure is None
        assert run.identical
        assert run.maps == result.reference
        assert (run.missing, run.extra, run.shapes, run.wrong) == ([], [], [], [])
        assert run.error <= TOLERANCE


@pytest.mark.parametrize("architecture", SPECIAL.split())
def test_attention_of_other_kinds(architecture):
    if architecture not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {architecture}")
    result = check(architecture)
    assert result.why_not is None
    assert result.reference > 0
    for run in result.runs:
        assert run.failure is None
        assert run.identical
        assert run.maps == result.reference
        assert (run.missing, run.extra, run.shapes, run.wrong) == ([], [], [], [])


def test_layers_without_attention_are_named():
    assert check("jamba").no_attention == ["JambaMambaMixer"]
    assert check("rt_detr_v2").no_attention == ["RTDetrV2MultiscaleDeformableAttention"]


def test_a_lens_that_is_wrong_is_found(monkeypatch):
    true = AttentionCall.weights
    monkeypatch.setattr(AttentionCall, "weights", lambda *args: true(*args) * 0.99)
    for run in check("llama").runs:
        assert len(run.wrong) == 2
        assert run.error > 1e-3


def test_a_lens_that_does_not_hear_is_found(monkeypatch):
    true = Recording.append

    def deaf(self, heard):
        if heard.shape[2] == heard.shape[3]:
            true(self, heard)

    monkeypatch.setattr(Recording, "append", deaf)
    for run in check("bart").runs:
        assert [name.split()[0] for name in run.missing] == [
            "decoder.layers.0.encoder_attn",
            "decoder.layers.1.encoder_attn",
        ]
