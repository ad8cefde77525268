"""``jumok look``, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


import torch

import jumok


def test_a_word_is_shown_in_full(run: Any, folders: dict[str, str]) -> None:
    code, out, err = run("look", "an apple phone", "--word", "apple", "-m", folders["encoder"])
    assert (code, err) == (0, "")
    assert out.startswith("Where apple takes its meaning from")
    for said in ("an apple phone", "phone", "%", "apart:", "itself", "<s>", "layers 0–2"):
        assert said in out
    assert "\x1b" not in out  # no colour in a pipe
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_the_default_model_reads_both_ways(run: Any) -> None:
    code, out, _ = run("look", "apple phone", "--word", "apple", "--json")
    found = json.loads(out)
    assert (code, found["model"], found["causal"]) == (0, "minilm", False)
    phone = next(s for s in found["queries"][0]["sources"] if s["word"] == "phone")
    assert phone["share"] == pytest.approx(0.396, abs=0.001)


def test_every_word_without_a_choice(run: Any, folders: dict[str, str]) -> None:
    code, out, _ = run("look", "an apple", "-m", folders["encoder"])
    assert code == 0
    assert "draws most on" in out


def test_a_gpt_says_what_it_cannot_see(run: Any, folders: dict[str, str]) -> None:
    code, out, _ = run("look", "an apple and", "-w", "apple", "-m", folders["gpt"])
    assert code == 0
    assert "“apple” cannot see “and” in a GPT; try --model minilm." in out


def test_json_is_one_object_and_nothing_else(run: Any, folders: dict[str, str]) -> None:
    code, out, err = run(
        "look", "an apple", "--word", "apple", "-m", folders["encoder"], "--layers", "1-2", "--json"
    )  # fmt: skip
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["layers"] == [1, 2]
    assert found["words"] == ["<s>", "an", " ", "apple", "</s>"]
    (query,) = found["queries"]
    assert sum(source["share"] for source in query["sources"]) == pytest.approx(1)


def test_two_texts_as_json(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run(
        "look", "an apple", "--against", "apple x", "-w", "apple", "-m", folders["encoder"],
        "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert found["against"]["text"] == "apple x"
    (pair,) = found["differences"]
    assert pair["word"] == "apple"
    itself = next(row for row in pair["sources"] if row["kind"] == "itself")
    assert itself["change"] == pytest.approx(itself["against"] - itself["share"])


def test_two_texts_without_a_word_compare_the_words_they_share(
    run: Any, folders: dict[str, str]
) -> None:
    _, out, _ = run("look", "Tom ate it", "--against", "It ate Ann", "-m", folders["encoder"])
    assert out.count("takes its meaning from in two texts") == 2  # ate, it


def test_occurrences_that_are_not_compared_are_named(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run("look", "a b a", "--against", "a c", "-w", "a", "-m", folders["encoder"])
    assert out.startswith("Where a (2nd) and, in the second text, a take their meaning from")
    assert "Not compared, as the other text has fewer: “a (1st)” of the first text." in out


def test_a_long_text_is_kept_and_its_first_words_shown(
    run: Any, folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jumok.lens.sources.MOST_QUERIES", 2)
    path = tmp_path / "run.safetensors"
    code, out, err = run("look", "a b c d", "-m", folders["encoder"], "--save", str(path))
    assert (code, err) == (0, f"wrote {path}\n")
    assert jumok.open(path)[0].shape == (1, 2, 9, 9)
    assert "The first 2 of 4 words." in out


def test_a_recording_is_kept_before_anything_can_be_wrong(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    code, _, _ = run("look", "a b", "-w", "x", "-m", folders["encoder"], "--save", str(path))
    assert code == 2
    assert len(jumok.open(path)) == 3


def test_no_terminal_command_of_the_text_comes_through(run: Any, folders: dict[str, str]) -> None:
    text = "a \x1b[31m b\x1b]0;X\x07"
    for arguments in (
        ("look", text, "-m", folders["encoder"]),
        ("look", text, "-w", "b", "-m", folders["encoder"]),
        ("generate", text, "-m", folders["gpt"], "--tokens", "20", "--seed", "1"),
        ("look", text, "-w", "\x1b[31m", "-m", folders["encoder"]),
    ):
        _, out, err = run(*arguments)
        assert not {"\x1b", "\x07"} & set(out + err)


def test_raw_weights_and_pieces(run: Any, folders: dict[str, str]) -> None:
    _, out, _ = run(
        "look", "한 a", "--pieces", "--raw", "--token", "4", "--json", "-m", folders["encoder"]
    )
    found = json.loads(out)
    assert found["measure"] == "raw"
    assert found["words"] == found["tokens"] == ["<s>", "한₁", "한₂", "한₃", "␣", "a", "</s>"]
    assert found["queries"][0]["word"] == "␣"
    _, out, _ = run("look", "an a", "--pieces", "-w", "an", "--json", "-m", folders["encoder"])
    assert [query["word"] for query in json.loads(out)["queries"]] == ["a", "n"]


def test_a_text_from_a_file_and_from_stdin(
    run: Any, folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes("\ufeff한 apple\n".encode())
    arguments = ("-w", "apple", "-m", folders["encoder"], "--json")
    _, out, _ = run("look", "--file", str(file), *arguments)
    assert json.loads(out)["text"] == "한 apple"
    import io

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"an apple\n")))
    _, out, _ = run("look", "--file", "-", *arguments)
    assert json.loads(out)["text"] == "an apple"


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_is_written(run: Any, folders: dict[str, str], tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"p.{kind}"
    code, _, err = run("look", "an apple", "-w", "an", "-m", folders["gpt"], "--png", str(path))
    assert (code, err) == (0, f"wrote {path}\n")
    assert path.stat().st_size > 1000
    assert [other.name for other in tmp_path.iterdir()] == [path.name]  # nothing half-done


def test_the_recording_is_kept_and_reported(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    run("look", "an apple", "-m", folders["gpt"], "--save", str(path))
    recording = jumok.open(path)
    assert recording[0].shape == (1, 2, 8, 8)
    code, out, _ = run("report", str(path))
    assert code == 0
    assert "entropy" in out.lower()


@pytest.mark.parametrize("more", [(), ("--segments", "lines")], ids=["words", "segments"])
def test_a_smaller_recording_is_kept(
    run: Any, folders: dict[str, str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    whole, small = tmp_path / "whole.safetensors", tmp_path / "small.safetensors"
    text = "an apple" if not more else "an\napple"
    look = ("look", text, "-m", folders["gpt"], "--json", *more)
    code, expected, err = run(*look, "--save", str(whole))
    assert code == 0, err
    code, out, _ = run(*look, "--save", str(small), "--keep", "qk")
    assert code == 0
    assert json.loads(out) == json.loads(expected)
    run(*look, "--save", str(small), "--keep", "qk", "--dtype", "bfloat16")
    with_values, without = jumok.open(whole)[0].call, jumok.open(small)[0].call
    assert with_values.v is not None
    assert without.v is None
    assert without.q.nbytes * 2 == with_values.q.nbytes
    rounded = torch.tensor(with_values.q[...]).bfloat16().float().numpy()
    assert (without.q[...] == rounded).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--keep", "qk"), "goes with --save"),
        (("--dtype", "bfloat16"), "goes with --save"),
        (("--keep", "q", "--save", "x.safetensors"), "--keep q: choose qkv or qk"),
        (("--dtype", "int8", "--save", "x.safetensors"), "choose bfloat16 or float16"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_what_is_kept_is_about_the_file(run: Any, options: tuple[str, ...], said: str) -> None:
    code, _, err = run("look", "an apple", *options)
    assert code == 2
    assert said in " ".join(err.split())
