"""Token files: what is read is what was written, and each token is in one part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from jumok.training.token_file import HEADER, TokenFile
from small_token_files import numbered, token_file


@pytest.mark.parametrize("wide", [False, True])
def test_a_file_holds_its_documents(tmp_path: Path, wide: bool) -> None:
    documents = numbered([3, 1, 5, 2])
    tokens = token_file(tmp_path, documents, wide=wide)
    assert (len(tokens), tokens.n_tokens) == (4, 11)
    assert [tokens.document(i).tolist() for i in range(4)] == documents
    assert tokens.lengths(np.arange(4)).tolist() == [3, 1, 5, 2]
    assert tokens.read(2, 7).tolist() == [2, 3, 4, 5, 6]
    assert tokens.documents_at(2, 7).tolist() == [0, 1, 2, 2, 2]
    assert tokens.read(0, 0).tolist() == []


def test_after_the_last_token_comes_the_first(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, numbered([2, 3]))
    assert tokens.read(3, 12).tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert tokens.documents_at(3, 12).tolist() == [1, 1, 2, 2, 3, 3, 3, 4, 4]


def test_other_programs_read_it(tmp_path: Path) -> None:
    token_file(tmp_path, numbered([3, 2]))
    found = load_file(tmp_path / "tokens.safetensors")
    assert found["tokens"].tolist() == [0, 1, 2, 3, 4]
    assert found["bounds"].tolist() == [0, 3, 5]


@pytest.mark.parametrize("damage", ["short", "long", "header", "empty"])
def test_damage_is_told(tmp_path: Path, damage: str) -> None:
    path = token_file(tmp_path, numbered([3, 2])).path
    data = path.read_bytes()
    changed = {
        "short": data[:-1],
        "long": data + b"\0",
        "header": b"\0" * HEADER + data[HEADER:],
        "empty": b"",
    }
    path.write_bytes(changed[damage])
    with pytest.raises(ValueError, match="damaged or no token file"):
        TokenFile(path)


def tokens_of(tokens: TokenFile) -> list[int]:
    return tokens.read(0, tokens.n_tokens).tolist()


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=300),
    st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5]),
    st.booleans(),
)
def test_every_token_is_in_one_part(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], share: float, pairs: bool
) -> None:
    if pairs:
        lengths = lengths * 2
    if sum(lengths) < 2:
        return
    family = "seq2seq" if pairs else "gpt"
    tokens = token_file(tmp_path_factory.mktemp("t"), numbered(lengths), family)
    parts = tokens.split(share)
    both = tokens_of(parts.train), tokens_of(parts.validation)
    if len(lengths) > 2:
        assert sorted(both[0] + both[1]) == list(range(sum(lengths)))
        assert bool(both[1]) == (share > 0)
    for part, found in zip((parts.train, parts.validation), both, strict=True):
        documents = [part.document(i).tolist() for i in range(len(part))]
        assert sum(documents, []) == found  # noqa: RUF017
        numbers = [number for number, d in enumerate(documents) for _ in d]
        if found:
            assert part.documents_at(0, part.n_tokens).tolist() == numbers
    if pairs:
        assert len(parts.train) % 2 == len(parts.validation) % 2 == 0
        starts = {0, *np.cumsum(lengths).tolist()}
        sources = [parts.validation.document(i)[0] for i in range(0, len(parts.validation), 2)]
        assert all(start in starts for start in sources)


def test_validation_is_drawn_from_everywhere(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, numbered([7] * 1000))
    parts = tokens.split(0.05)
    assert len(parts.validation) == 50
    first = np.array([parts.validation.document(i)[0] // 7 for i in range(50)])
    assert (np.histogram(first, bins=4, range=(0, 1000))[0] > 5).all()
    again = tokens.split(0.05)
    assert tokens_of(again.validation) == tokens_of(parts.validation)


def test_a_single_document_is_cut_near_its_end(tmp_path: Path) -> None:
    parts = token_file(tmp_path, numbered([1000])).split(0.1)
    assert tokens_of(parts.train) == list(range(900))
    assert tokens_of(parts.validation) == list(range(900, 1000))
    assert parts.validation.document(0).tolist() == list(range(900, 1000))
    assert (len(parts.train), len(parts.validation)) == (1, 1)


def test_few_documents_are_cut_at_a_border(tmp_path: Path) -> None:
    parts = token_file(tmp_path, numbered([500, 400, 95])).split(0.1)
    assert tokens_of(parts.validation) == list(range(900, 995))
    assert (len(parts.train), len(parts.validation)) == (2, 1)


def test_one_great_document_does_not_become_the_validation(tmp_path: Path) -> None:
    for great in range(0, 200, 7):
        lengths = [3] * 200
        lengths[great] = 10_000
        folder = tmp_path / str(great)
        folder.mkdir()
        parts = token_file(folder, numbered(lengths)).split(0.05)
        assert 0.02 < parts.validation.n_tokens / sum(lengths) < 0.11


def test_a_share_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"validation=1\.5: a share"):
        token_file(tmp_path, numbered([3])).split(1.5)
