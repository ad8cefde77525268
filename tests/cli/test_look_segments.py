"""``jumok look --segments``, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import jumok

CHAT = json.dumps([{"role": "user", "content": "Hi\n\nyou"}, {"role": "user", "content": "Who?"}])


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A file of two paragraphs, as written on Windows: with BOM and CRLF."""
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffCats eat.\r\n\r\nWho 먹?\r\n".encode())
    return str(file)


def test_paragraphs_are_shown(run: Any, folders: dict[str, str], text: str) -> None:
    code, out, err = run("look", "-f", text, "--segments", "paragraphs", "-m", folders["gpt"])
    assert (code, err) == (0, "")
    assert out.startswith("Which passage did 2 “Who 먹?” read?")
    for said in (
        "1  Cats eat.",
        "the first token (the sink)",
        "Who reads (rows)",
        "× is the share",
    ):
        assert said in out
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_the_last_segment_is_what_the_model_wrote(
    run: Any, folders: dict[str, str], text: str
) -> None:
    arguments = ("look", "-f", text, "-s", "paragraphs", "-m", folders["gpt"], "-g", "5", "--json")
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["answered"]
    assert found["segments"][-1]["name"] == "answer"
    assert found["tokens"] == 19 + 5
    assert found["segments"][-1]["tokens"] == [19, 24]
    assert sum(part["share"] for part in found["last"]) == pytest.approx(1, abs=1e-5)
    assert all(part["loss"] is None for part in found["last"])
    _, out, err = run(*arguments, "--leave-out")
    model, _ = jumok.load(folders["gpt"])
    ids = jumok.load(folders["gpt"])[1].encode(found["text"])[:24]
    passages = [one["tokens"] for one in found["segments"][:-1]]
    expected = jumok.leave_out(model, ids, 19, passages).losses
    left = json.loads(out)
    losses = [part["loss"] for part in left["last"][: len(passages)]]
    assert losses == pytest.approx(list(expected), abs=1e-4)
    assert left["last"][len(passages)]["loss"] is None
    _, out, _ = run(*arguments[:-1])
    assert out.startswith("Which passage did the answer read?")
    assert "It wrote:" in out


def test_the_recording_of_what_it_wrote_equals_one_forward(
    run: Any, folders: dict[str, str], text: str, tmp_path: Path
) -> None:
    import torch

    path = tmp_path / "run.safetensors"
    arguments = ("look", "-f", text, "-s", "lines", "-m", folders["gpt"], "-g", "5", "--json")
    _, out, err = run(*arguments, "--save", str(path))
    assert err == f"wrote {path}\n"
    model, tokens = jumok.load(folders["gpt"])
    ids = jumok.generate(model, [tokens.encode("Cats eat.\n\nWho 먹?")], 5, temperature=0)
    with torch.inference_mode(), jumok.watch(model) as recording:
        model(ids)
    expected = jumok.segments(recording, tokens, "lines", prompt=19).to_dict()
    found = json.loads(out)
    for name in ("share", "raw", "even"):
        for row, wanted in zip(found[name], expected[name], strict=True):
            assert row == pytest.approx(wanted, abs=1e-5)
    kept = jumok.segments(jumok.open(path), tokens, "lines", prompt=19).to_dict()
    assert kept["share"][-1] == pytest.approx(found["share"][-1], abs=1e-5)


def test_markdown_and_a_picture(
    run: Any, folders: dict[str, str], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.svg"
    code, out, err = run(
        "look",
        "-f",
        text,
        "-s",
        "lines",
        "-m",
        folders["encoder"],
        "--markdown",
        "--png",
        str(path),
    )
    assert (code, err) == (0, f"wrote {path}\n")
    assert out.startswith("**Which passage did 2 “Who 먹?” read?**")
    assert "|:--|--:|--:|--:|" in out
    assert path.stat().st_size > 1000


def test_segments_named_in_a_file(
    run: Any, folders: dict[str, str], text: str, tmp_path: Path
) -> None:
    by_beginning, as_json = tmp_path / "names.txt", tmp_path / "names.json"
    by_beginning.write_text("animals: Cats\nquestion: Who\n")
    as_json.write_text('[{"name": "animals", "start": 0, "end": 9}, {"text": "먹"}]')
    for file, names in ((by_beginning, ["animals", "question"]), (as_json, ["animals", "먹"])):
        _, out, _ = run("look", "-f", text, "-s", str(file), "-m", folders["gpt"], "--json")
        assert [one["name"] for one in json.loads(out)["segments"]] == names


def with_template(folder: str, template: str, tmp_path: Path) -> str:
    """The model's folder with a chat template."""
    import shutil

    copied = tmp_path / "chatty"
    shutil.copytree(folder, copied)
    (copied / "chat_template.jinja").write_text(template)
    return str(copied)


def test_a_chat_is_put_into_the_models_template(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}<|user|>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}A:{% endif %}"
    )
    model = with_template(folders["gpt"], template, tmp_path)
    _, out, _ = run("look", CHAT, "-s", "chat", "-m", model, "--json")
    found = json.loads(out)
    assert found["text"] == "<|user|>Hi\n\nyou</s><|user|>Who?</s>"
    assert [one["text"] for one in found["segments"]] == ["Hi\n\nyou", "Who?"]
    assert {"kind": "special", "count": 2} in found["apart"]
    _, out, _ = run("look", CHAT, "-s", "paragraphs", "-m", model, "--json")
    assert [one["text"] for one in json.loads(out)["segments"]] == ["Hi", "you", "Who?"]
    _, out, _ = run("look", "Hi", "-s", "lines", "-m", model, "--chat", "-g", "2", "--json")
    found = json.loads(out)
    assert found["text"].startswith("<|user|>Hi</s>A:")
    assert [one["name"] for one in found["segments"]] == ["Hi", "answer"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-s", "words"], "--segments words: choose paragraphs, lines, chat; there is no file"),
        (["-s", "lines", "-w", "a"], "--segments shows passages, --word words"),
        (["-s", "lines", "--token", "0"], "--token words"),
        (["-s", "lines", "--against", "b"], "--against words"),
        (["-s", "lines", "--pieces"], "--pieces words"),
        (["-g", "5"], "--generate goes with --segments"),
        (["--chat"], "--chat goes with --segments"),
        (["--leave-out"], "--leave-out goes with --segments"),
        (["-s", "lines", "--leave-out"], "it goes with --generate"),
        (["--markdown"], "--markdown goes with --segments"),
        (["-s", "lines", "--markdown", "--json"], "choose --json or --markdown"),
        (["-s", "lines", "-g", "0"], "--generate 0: at least 1"),
        (["-s", "lines", "--layers", "x"], "--layers x"),
        (["-s", "lines", "--png", "p.gif"], "p.gif: the name must end in"),
        (["-s", "lines", "-m", "nope"], "no model 'nope'"),
    ],
)
def test_one_clear_line(refused: Any, arguments: list[str], said: str) -> None:
    assert said in refused("look", "a", *arguments)


def test_what_only_the_model_knows_is_refused_too(
    refused: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    gpt = ("-m", folders["gpt"])
    assert "is an encoder and can't continue a text" in refused(
        "look", "a", "-s", "lines", "-g", "2", "-m", folders["encoder"]
    )
    assert "has 30 tokens and 20 are to be written, gpt reads at most 40" in refused(
        "look", "a" * 30, "-s", "lines", "-g", "20", *gpt
    )
    assert "has 50 tokens, gpt reads at most 40" in refused("look", "a" * 50, "-s", "lines", *gpt)
    assert "no turn of a chat was found" in refused("look", "a", "-s", "chat", *gpt)
    assert "has no chat template" in refused("look", "a", "-s", "lines", "--chat", *gpt)
    assert "has no chat template" in refused("look", CHAT, "-s", "chat", *gpt)
    assert "leave out --chat" in refused("look", "<|user|>a", "-s", "lines", "--chat", *gpt)
    assert "no layer 7" in refused("look", "a", "-s", "lines", "--layers", "7", *gpt)
    names = tmp_path / "names.txt"
    names.write_text("A: birds")
    assert "segment 1 ('A') isn't in the text" in refused("look", "a", "-s", str(names), *gpt)
    names.write_text("birds")
    assert f"--segments {names}: line 1 is 'birds'" in refused("look", "a", "-s", str(names), *gpt)
    names.write_text('[{"start": 0, "end": 99}]')
    assert "from 0 to 99, but the text has 1 char" in refused("look", "a", "-s", str(names), *gpt)


def test_an_answer_that_ends_at_once_is_none(
    refused: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    import dataclasses

    model, tokens = jumok.load(folders["gpt"])
    ending = jumok.Decoder(dataclasses.replace(model.config, eos_ids=tuple(range(258))))
    jumok.save(ending, tmp_path / "ending", tokens)
    said = refused("look", "a b", "-s", "lines", "-g", "3", "-m", str(tmp_path / "ending"))
    assert "ending wrote nothing: it ends the text here; leave out --generate" in said


def test_segments_are_read_by_smollm2_unless_told_otherwise(run: Any) -> None:
    text = "The warranty covers defects.\n\nWho pays for defects?"
    _, out, _ = run("look", text, "-s", "paragraphs", "--json")
    found = json.loads(out)
    assert found["model"] == "smollm2"
    assert found["measure"] == "share"
    assert [one["name"] for one in found["segments"]] == [
        "The warranty covers defects.",
        "Who pays for defects?",
    ]
