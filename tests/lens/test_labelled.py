"""A recording knows its words: labels, words and passages, live and in its file."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import jumok
import known_maps
import known_pages
from jumok.lens.labelled import labelled, read_written_text, written_text
from jumok.tokens import read

CHAT = """<|im_start|>system
Be kind.<|im_end|>
<|im_start|>user
What is a bank?

Tell me.<|im_end|>"""


@pytest.mark.parametrize("text", [known_pages.TEXT, CHAT, "한", "a", "\n\n  \n", "\ud800?"])
def test_what_is_written_is_read(text):
    tokens = known_pages.tokenizer()
    ids = tokens.encode(text.encode("utf-8", "replace").decode())
    found = labelled(tokens, ids)
    assert found.reading == read(tokens, ids)
    assert found.prompt == len(ids)
    assert read_written_text(written_text(found)) == found


def test_passages_are_those_of_segments():
    tokens = known_pages.tokenizer()
    ids = tokens.encode(CHAT)
    found = labelled(tokens, ids, CHAT)
    assert [name for name, _, _ in found.passages["chat"]] == ["system", "user"]
    assert len(found.passages["paragraphs"]) == 3
    pieces = [tokens.decode(ids[first:stop]) for _, first, stop in found.passages["chat"]]
    assert pieces == ["Be kind.", "What is a bank?\n\nTell me."]
    assert "chat" not in labelled(tokens, tokens.encode("no chat")).passages
    long = "\n".join("abcdefgh" for _ in range(600))
    assert "lines" not in labelled(tokens, tokens.encode(long)).passages  # too many to look at


def test_what_the_model_wrote_is_the_last_passage():
    tokens = known_pages.tokenizer()
    ids = tokens.encode("the bank.\n\nIs it open? Yes.")
    found = labelled(tokens, ids, prompt=len(ids) - 5)
    assert found.passages["paragraphs"][-1] == ("answer", len(ids) - 5, len(ids))
    for prompt in (0, len(ids) + 1):
        with pytest.raises(ValueError, match=f"prompt={prompt}"):
            labelled(tokens, ids, prompt=prompt)
    with pytest.raises(ValueError, match="gives other token ids"):
        labelled(tokens, ids, "another text")


def test_special_tokens_are_known():
    tokens = known_maps.tokenizer()
    found = labelled(tokens, tokens.encode("an apple and an orange"))
    assert found.special == (0, 6)


@pytest.mark.parametrize(
    "damaged", [b"", b"[]", b'{"text": "a"}', b'{"text": 3, "labels": 4}', b"\xff\xfe"]
)
def test_damaged_labels_are_said(damaged):
    with pytest.raises(ValueError, match="labels of the recording are damaged"):
        read_written_text(np.frombuffer(damaged, np.uint8))


def test_the_file_knows_the_words(tmp_path):
    recording = known_pages.gpt()
    recording.texts = {}
    recording.save(tmp_path / "bare.safetensors")
    assert jumok.open(tmp_path / "bare.safetensors").texts == {}
    recording.save(tmp_path / "named.safetensors", known_pages.tokenizer())
    opened = jumok.open(tmp_path / "named.safetensors")
    assert opened.texts == recording.texts
    assert opened.texts["ids"][0].reading.text == known_pages.TEXT
    opened.save(tmp_path / "again.safetensors")
    assert jumok.open(tmp_path / "again.safetensors").texts == recording.texts
    with safe_open(tmp_path / "named.safetensors", framework="numpy") as file:
        header = json.loads(file.metadata()["jumok"])
    assert header["format"] == 1  # older versions open it, too
    assert header["texts"] == {"ids": ["texts.ids.0"]}


def test_a_recording_without_ids_cannot_be_labelled():
    recording = jumok.Recording("none", list(known_pages.gpt()))
    with pytest.raises(ValueError, match="no token ids to label"):
        recording.label(known_pages.tokenizer())


# -- which ids a model was given --------------------------------------------------------------


def test_both_texts_of_an_encoder_decoder_are_known(tmp_path):
    recording = known_pages.translated()
    tokens = known_pages.tokenizer()
    assert recording.ids.tolist() == [tokens.encode("the bank")]
    assert recording.decoder_ids.shape == (1, 9)
    assert recording.decoder_ids[0, 0] == 261
    assert recording[2].shape == (1, 4, 9, 9)
    recording.save(tmp_path / "run.safetensors")
    opened = jumok.open(tmp_path / "run.safetensors")
    np.testing.assert_array_equal(opened.decoder_ids, recording.decoder_ids)
    assert opened.texts.keys() == {"ids", "decoder_ids"}


def test_both_texts_when_recorded_to_disk(tmp_path):
    tokens = known_pages.tokenizer()
    config = jumok.EncoderDecoderConfig.vaswani(300, 32, 1, 4, 64, 0.0, bos_id=261)
    model = jumok.EncoderDecoder(config).eval()
    ids = torch.tensor([tokens.encode("the bank")])
    path = tmp_path / "run.safetensors"
    with torch.no_grad(), jumok.watch(model, to="disk", file=path):
        model(ids, ids[:, :2] + 1)
    opened = jumok.open(path)
    assert opened.ids.tolist() == ids.tolist()
    assert opened.decoder_ids.tolist() == (ids[:, :2] + 1).tolist()


def test_the_ids_of_transformers_encoder_decoder():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    source = torch.tensor([[5, 6, 7, 1]])
    with torch.no_grad(), jumok.watch(model) as recording:
        model(input_ids=source, decoder_input_ids=torch.tensor([[0, 9]]))
    assert recording.ids.tolist() == source.tolist()
    assert recording.decoder_ids.tolist() == [[0, 9]]
    with torch.no_grad(), jumok.watch(model) as recording:
        written = model.generate(source, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert recording.ids.tolist() == source.tolist()
    assert recording.decoder_ids.tolist() == written[:, :-1].tolist()  # the last is never read


class Positional(nn.Module):
    """Its parameters say nothing by their names."""

    def __init__(self):
        super().__init__()
        self.attention = jumok.MultiHeadAttention(16, 2)
        self.embedding = nn.Embedding(50, 16)

    def forward(self, x, mask=None):
        return self.attention(self.embedding(x))


def test_the_first_integers_are_the_ids_whatever_they_are_called():
    ids = torch.tensor([[1, 2, 3]])
    model = Positional().eval()
    with torch.no_grad(), jumok.watch(model) as recording:
        model(ids, torch.tensor([[1, 1, 1]]))
    assert recording.ids.tolist() == ids.tolist()
    assert recording.decoder_ids is None
