"""Settings: what is refused and how it is said, JSON both ways, the command that asks for them."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jumok.training.settings import SIZES, Training


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"family": "rnn"}, r"family='rnn': one of gpt, bert, seq2seq"),
        ({"size": "huge"}, r"size='huge': one of tiny"),
        ({"schedule": "linear"}, "schedule='linear'"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"parallel": "tp"}, "parallel='tp': one of ddp, fsdp"),
        ({"steps": 0}, "steps=0: a whole number, at least 1"),
        ({"n_layers": 1.5}, r"n_layers=1\.5"),
        ({"batch": True}, "batch=True"),
        ({"validation": 1.0}, r"validation=1\.0: a number from 0 to below 1"),
        ({"dropout": -0.1}, r"dropout=-0\.1"),
        ({"label_smoothing": 2}, "label_smoothing=2: a number from 0 to 1"),
        ({"learning_rate": 0.0}, r"learning_rate=0\.0: a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"clip": -1.0}, r"clip=-1\.0"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"warm_up": -1}, "warm_up=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"steps": 5, "tokens": 5}, "give one of them"),
        ({"schedule": "vaswani", "learning_rate": 1.0}, "leave out"),
        ({"lora": 4}, "base"),
        ({"lora_alpha": 4.0}, "rank"),
        ({"base": "smollm2", "emb_dim": 64}, "emb_dim=64: the size of 'smollm2' is settled"),
        ({"batch": 4, "micro_batch": 8}, "micro_batch=8 is more than the batch of 4 rows"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Training("topics", "out", **wrong)


def test_json_both_ways() -> None:
    training = Training("a b.txt", Path("runs") / "x", betas=[0.8, 0.9], fields=["text"], steps=5)  # type: ignore[arg-type]
    assert Training.from_json(training.to_json()) == training
    for text in ("[]", "{}", '{"corpus": "a", "out": "b", "new": 1}', "{"):
        with pytest.raises(ValueError, match=r"no settings|Expecting"):
            Training.from_json(text)


def test_differences_leave_out_how_a_run_is_watched() -> None:
    before = Training("topics", "out", steps=5, seed=1)
    now = Training("topics", "elsewhere", steps=9, seed=2, log_every=3, device="cpu")
    assert now.differences(before) == {"seed": (1, 2)}


def test_steps_follow_from_tokens() -> None:
    assert Training("topics", "out", tokens=1001).n_steps(100) == 11
    assert Training("topics", "out", steps=7).n_steps(100) == 7
    assert Training("topics", "out").n_steps(100) == 1000


def test_the_rate_of_a_size_and_of_what_has_learned() -> None:
    highest = SIZES["small"].learning_rate
    assert Training("topics", "out", size="small").highest_rate == highest
    assert Training("topics", "out", size="small", base="x").highest_rate == highest / 20
    assert Training("topics", "out", size="small", base="x", lora=4).highest_rate == highest / 5
    assert Training("topics", "out", learning_rate=0.5, base="x").highest_rate == 0.5


def test_the_command_asks_for_the_same() -> None:
    """What the command line makes of `Training.command` is the training again."""
    from jumok.cli import app, train

    training = Training(
        "my corpus.jsonl",
        "runs/x",
        fields=("source", "target"),
        family="seq2seq",
        n_layers=3,
        n_heads=2,
        betas=(0.8, 0.9),
        compile=False,
        recompute=True,
        average=0.99,
        steps=5,
    )
    words = shlex.split(training.command)
    assert words[:5] == ["jumok", "train", "my corpus.jsonl", "--out", "runs/x"]
    import typer

    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    context = command.make_context("train", words[2:])
    assert train.settings_of(context.params) == training


def test_every_setting_is_an_option_and_documented() -> None:
    import inspect

    from jumok.cli import train

    options = set(inspect.signature(train.train).parameters)
    renamed = {"layers": "n_layers", "heads": "n_heads", "field": "fields"}
    names = {field.name for field in fields(Training)}
    assert {renamed.get(option, option) for option in options} == names
    assert Training.__doc__ is not None
    for name in names:
        assert f"        {name}: " in Training.__doc__
