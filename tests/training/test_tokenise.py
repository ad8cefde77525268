"""A corpus as a token file: the tokens of its documents, whatever happened on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jumok.tokens import Tokenizer
from jumok.training.corpus import Corpus, Texts, read_corpus
from jumok.training.new_tokenizer import new_tokenizer
from jumok.training.token_file import TokenFile
from jumok.training.tokenise import tokenise

TOPICS = read_corpus("topics")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return new_tokenizer("bpe", TOPICS, 600, tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 1 MB, 16 fragments."""
    path = tmp_path_factory.mktemp("long") / "long.txt"
    documents = [str(document) for document in TOPICS.documents()]
    chance = random.Random(0)
    path.write_text("\n".join(chance.choice(documents) for _ in range(200))[:1_000_000], "utf-8")
    return path


def documents(tokens: TokenFile) -> list[list[int]]:
    return [tokens.document(number).tolist() for number in range(len(tokens))]


def test_documents_are_those_of_the_corpus(bpe: Tokenizer, tmp_path: Path) -> None:
    tokens = tokenise(TOPICS, bpe, tmp_path).train
    wanted = [[*bpe.encode(text), bpe.eos_id] for text in map(str, TOPICS.documents())]
    assert documents(tokens) == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "tokens.safetensors"]


def test_a_long_text_has_the_tokens_of_the_whole(
    bpe: Tokenizer, long_text: Path, tmp_path: Path
) -> None:
    tokens = tokenise(read_corpus(long_text), bpe, tmp_path).train
    assert documents(tokens) == [[*bpe.encode(long_text.read_text("utf-8")), bpe.eos_id]]


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    texts = ["Hello 한", "one<|endoftext|>two", "\x00\xff"]
    tokenizer = new_tokenizer("bytes", TOPICS, 0, tmp_path)
    tokens = tokenise(Texts("t", texts), tokenizer, tmp_path).train
    assert documents(tokens) == [[*tokenizer.encode(text), tokenizer.eos_id] for text in texts]
    assert documents(tokens)[1] == [*b"one", tokenizer.eos_id, *b"two", tokenizer.eos_id]


def test_pairs_take_turns(tmp_path: Path) -> None:
    corpus = Texts("p", [("ab", "c"), ("d", "ef")])
    tokenizer = new_tokenizer("bytes", corpus, 0, tmp_path, family="seq2seq")
    tokens = tokenise(corpus, tokenizer, tmp_path, family="seq2seq").train
    end = tokenizer.eos_id
    assert documents(tokens) == [[*b"ab", end], [*b"c", end], [*b"d", end], [*b"ef", end]]


def test_targets_are_cut_by_their_own_tokenizer(bpe: Tokenizer, tmp_path: Path) -> None:
    """As Marian's are."""
    corpus = Texts("p", [("the statement", "the statement"), ("a", "b")])
    tokenizer = new_tokenizer("bytes", corpus, 0, tmp_path / "bytes", family="seq2seq")
    tokenizer.target = bpe
    tokens = tokenise(corpus, tokenizer, tmp_path, family="seq2seq").train
    assert documents(tokens)[:2] == [
        [*b"the statement", tokenizer.eos_id],
        [*bpe.encode("the statement"), bpe.eos_id],
    ]


def test_a_great_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    words = {f"w{number}": number for number in range(70_000)} | {"<end>": 70_000}
    backend = Backend(models.WordLevel(words, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(backend, {"eos_token": "<end>"})
    tokens = tokenise(Texts("t", ["w1 w69999 w3"]), tokenizer, tmp_path).train
    assert documents(tokens) == [[1, 69_999, 3, 70_000]]


def test_it_is_done_once(bpe: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenise(TOPICS, bpe, tmp_path).train
    monkeypatch.setattr("jumok.training.tokenise._made", None)
    (tmp_path / "journal.json").write_text("{}")  # as if killed just after the last step
    again = tokenise(TOPICS, bpe, tmp_path, validation=0.1)
    assert again.train.n_tokens + again.validation.n_tokens == first.n_tokens
    assert not (tmp_path / "journal.json").exists()


def test_progress_is_told(bpe: Tokenizer, long_text: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    corpus = read_corpus(long_text)
    tokenise(corpus, bpe, tmp_path, tell=lambda *said: told.append(said))
    tokenising = [(done, total) for what, done, total in told if what == "tokenising"]
    assert [done for done, _ in tokenising] == sorted(done for done, _ in tokenising)
    assert tokenising[-1] == (corpus.n_bytes, corpus.n_bytes)


@pytest.mark.parametrize("what", ["corpus", "tokenizer", "family"])
def test_what_has_changed_is_told(bpe: Tokenizer, tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text")
    folder = tmp_path / "data"
    tokenise(read_corpus(path), bpe, folder)
    tokenizer, family, said = bpe, "gpt", "the tokenizer is another one"
    if what == "corpus":
        path.write_text("some more")
        said = r"the corpus has changed \(it was a.txt\)"
    elif what == "tokenizer":
        tokenizer = new_tokenizer("bytes", TOPICS, 0, tmp_path / "t")
    else:
        family, said = "bert", "the family was gpt, is bert"
    with pytest.raises(ValueError, match=said + ".*or delete"):
        tokenise(read_corpus(path), tokenizer, folder, family=family)


def test_what_is_half_done_for_another_corpus_is_not_taken(
    bpe: Tokenizer, long_text: Path, tmp_path: Path
) -> None:
    stopped_after(3, read_corpus(long_text), bpe, tmp_path)
    assert (tmp_path / "journal.json").exists()
    tokens = tokenise(TOPICS, bpe, tmp_path).train
    assert len(tokens) == 79 or len(tokens) == len(list(TOPICS.documents()))
    assert documents(tokens)[0] == [*bpe.encode(str(next(TOPICS.documents()))), bpe.eos_id]


class Stop(Exception):
    pass


def stopped_after(
    batches: int, corpus: Corpus, tokenizer: Tokenizer, folder: Path, **options: Any
) -> None:
    """Tokenise, but end with an exception after some batches."""
    count = 0

    def tell(what: str, done: int, total: int | None) -> None:
        nonlocal count
        count += what == "tokenising"
        if count > batches:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jumok.training.tokenise._EVERY", 0.0)
        patch.setattr("jumok.training.tokenise._BATCH", 50_000)
        with pytest.raises(Stop):
            tokenise(corpus, tokenizer, folder, tell=tell, **options)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "pairs"])
def test_it_goes_on_where_it_was_stopped(
    bpe: Tokenizer, long_text: Path, tmp_path: Path, kind: str
) -> None:
    pairs = kind == "pairs"
    text = long_text.read_text("utf-8")
    texts = [text[place : place + 9000] for place in range(0, len(text), 9000)]
    if kind == "txt":
        corpus = read_corpus(long_text)
    elif kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", 100)
        corpus = read_corpus(tmp_path / "a.parquet")
    else:
        lines = [json.dumps({"text": t, "source": t, "target": t}) + "\n" for t in texts]
        (tmp_path / "a.jsonl").write_text("".join(lines))
        corpus = read_corpus(tmp_path / "a.jsonl", pairs=pairs)
    options: dict[str, Any] = {"family": "seq2seq"} if pairs else {}
    whole = tokenise(corpus, bpe, tmp_path / "whole", **options).train.path.read_bytes()
    folder = tmp_path / "stopped"
    for batches in (3, 2, 5):
        stopped_after(batches, corpus, bpe, folder, **options)
    assert json.loads((folder / "journal.json").read_text())["done"] > 300_000
    assert tokenise(corpus, bpe, folder, **options).train.path.read_bytes() == whole


KILLED = """
import sys
from pathlib import Path
from jumok.tokens import Tokenizer
from jumok.training import tokenise
from jumok.training.corpus import read_corpus
tokenise._EVERY, tokenise._BATCH = 0.0, 20_000
corpus, tokenizer, folder = map(Path, sys.argv[1:])
tokenise.tokenise(read_corpus(corpus), Tokenizer.from_folder(tokenizer), folder)
"""


def test_it_may_be_killed_at_any_moment(bpe: Tokenizer, long_text: Path, tmp_path: Path) -> None:
    """SIGKILL several times at random moments: the same bytes as of an undisturbed run."""
    bpe.save(tmp_path / "bpe")
    whole = tokenise(read_corpus(long_text), bpe, tmp_path / "whole").train.path.read_bytes()
    folder, chance, kills = tmp_path / "killed", random.Random(1), 0
    command = [sys.executable, "-c", KILLED, str(long_text), str(tmp_path / "bpe"), str(folder)]
    for _ in range(5):
        process = subprocess.Popen(command)
        before = journal(folder)
        while process.poll() is None and journal(folder) == before:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        if (folder / "tokens.safetensors").exists():
            break
    assert kills >= 2
    subprocess.run(command, check=True)
    assert (folder / "tokens.safetensors").read_bytes() == whole
    left = {path.name for path in folder.iterdir()} - {".lock", "digests.json"}
    assert left == {"tokens.safetensors"}


def journal(folder: Path) -> str:
    try:
        return (folder / "journal.json").read_text()
    except OSError:
        return ""


def test_a_full_disk_loses_nothing(bpe: Tokenizer, long_text: Path, tmp_path: Path) -> None:
    """The kernel refuses to make files longer: the error says so, and then it goes on."""
    bpe.save(tmp_path / "bpe")
    folder = tmp_path / "full"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))\n"
    arguments = [str(long_text), str(tmp_path / "bpe"), str(folder)]
    full = subprocess.run(
        [sys.executable, "-c", limit + KILLED, *arguments], capture_output=True, text=True
    )
    assert full.returncode == 1
    assert "while tokenising; what is done is kept: the same command goes on" in full.stderr
    assert not (folder / "tokens.safetensors").exists()
    assert json.loads(journal(folder))["tokens"] > 100_000
    whole = tokenise(read_corpus(long_text), bpe, tmp_path / "whole").train.path.read_bytes()
    assert tokenise(read_corpus(long_text), bpe, folder).train.path.read_bytes() == whole


def test_too_small_a_disk_is_told_before(
    bpe: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 200_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"not enough room .* take about 1 MB, 0 MB are free"):
        tokenise(TOPICS, bpe, tmp_path)


def test_a_folder_that_can_not_be_made_is_told(bpe: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="can't write there"):
        tokenise(TOPICS, bpe, tmp_path / "file" / "data")


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_two_processes_do_not_write_one_file(bpe: Tokenizer, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is tokenising"):
            tokenise(TOPICS, bpe, tmp_path)
    assert len(tokenise(TOPICS, bpe, tmp_path).train) > 0
    assert os.listdir(tmp_path)


def test_a_corpus_of_another_kind_is_told(bpe: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="topics has texts, not pairs"):
        tokenise(TOPICS, bpe, tmp_path, family="seq2seq")
    with pytest.raises(ValueError, match="has pairs of source and target"):
        tokenise(Texts("p", [("a", "b")]), bpe, tmp_path)
    with pytest.raises(ValueError, match="nothing but blank documents"):
        tokenise(Texts("t", [" "]), bpe, tmp_path)
