"""`leave_out`: the answer's log-probability, against the definition."""

import pytest
import torch

import jumok

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


IDS = torch.randint(0, 50, (14,), generator=torch.Generator().manual_seed(1)).tolist()


def log_probability(model, prompt, answer):
    """Token by token, in float64."""
    total, before = 0.0, list(prompt)
    for token in answer:
        with torch.no_grad():
            logits = model(torch.tensor([before])).logits[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
        before.append(token)
    return total


def test_each_passage_is_taken_away(model):
    found = jumok.leave_out(model, IDS, 10, [(0, 3), (3, 3), (3, 8), (8, 14)])
    answer = IDS[10:]
    whole = log_probability(model, IDS[:10], answer)
    without = [
        log_probability(model, IDS[3:10], answer),
        None,
        log_probability(model, IDS[:3] + IDS[8:10], answer),
        log_probability(model, IDS[:8], answer),
    ]
    assert found.tokens == 4
    assert found.log_probability == pytest.approx(whole, abs=1e-4)
    assert found.without == pytest.approx(without, abs=1e-4)
    assert found.losses[1] is None
    assert found.losses[2] == pytest.approx(whole - without[2], abs=2e-4)


def test_the_whole_prompt_cannot_be_left_out(model):
    assert jumok.leave_out(model, IDS, 10, [(0, 10), (0, 14)]).losses == (None, None)


def test_progress_and_mode(model):
    told = []
    model.train()
    jumok.leave_out(
        model, torch.tensor(IDS), 10, [(0, 1), (1, 2)], progress=lambda *a: told.append(a)
    )
    assert told == [(1, 3), (2, 3)]
    assert model.training
    model.eval()


def test_bad_input_is_named(model):
    for prompt in (0, 14, 20):
        with pytest.raises(ValueError, match=f"prompt={prompt}"):
            jumok.leave_out(model, IDS, prompt, [])
    with pytest.raises(ValueError, match=r"passage \(3, 15\)"):
        jumok.leave_out(model, IDS, 10, [(3, 15)])
    with pytest.raises(ValueError, match="returned"):
        jumok.leave_out(model.model, IDS, 10, [(0, 3)])
