"""Tiles against the weights themselves, cut, pooled and divided by hand."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

import jumok
from jumok import fused
from jumok.lens.attention_map import AttentionMap
from jumok.lens.call import AttentionCall
from jumok.lens.part import part_of_head
from jumok.masks import Causal, Dense, Packed, Padding, Prefix, Steps, Window
from jumok.view import tiles as tiles_room
from jumok.view.stopping import Kept, Stop, Stopped
from jumok.view.tiles import Head, TileFolder, TileMaker, levels, small_maps


class Source:
    """A map of one call, as a recording has it."""

    name, measured, value_note, has_value_norms, held_bytes = "layer", None, "", False, 0

    def __init__(self, call):
        self._call = call
        self.shape = call.shape
        self.heads = tuple(range(call.shape[1]))

    def call(self):
        return self._call

    def value_norms(self):
        return None


def made(queries, keys, mask=None, *, heads=4, group=2, torch_tensors=False, seed=0, **options):
    random = np.random.default_rng(seed)
    q, k = (
        random.normal(size=(2, n, tokens, 8)).astype(np.float32)
        for n, tokens in ((heads, queries), (heads // group, keys))
    )
    if torch_tensors:
        q, k = torch.from_numpy(q), torch.from_numpy(k)
    call = AttentionCall(
        q=q, k=k, v=None, mask=mask, bias=None, scale=0.9, softcap=None, sinks=None, lse=None
    )
    return AttentionMap(Source(dataclasses.replace(call, **options)))


def visible(queries, keys, seed=0):
    found = np.random.default_rng(seed).random((2, 4, queries, keys)) < 0.6
    found[:, :, 3] = False  # a row that sees nothing
    return found


def pooled(weights, cell, how):
    """Largest or mean weight of each square, those at the ends smaller."""
    down, across = (-(-total // cell) for total in weights.shape)
    padded = np.full((down * cell, across * cell), np.nan)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    squares = padded.reshape(down, cell, across, cell)
    return getattr(np, f"nan{how}")(squares, axis=(1, 3))


CASES = {
    "causal": {"queries": 700, "keys": 700, "mask": Causal()},
    "everything": {"queries": 300, "keys": 530},
    "window": {"queries": 600, "keys": 600, "mask": Window(40)},
    "more keys": {"queries": 130, "keys": 700, "mask": Causal()},
    "one query": {"queries": 1, "keys": 600, "mask": Causal()},
    "padding": {
        "queries": 520, "keys": 520, "mask": Causal() & Padding(np.arange(520)[None] >= [[0], [33]])
    },
    "dense": {"queries": 270, "keys": 290, "mask": Dense(visible(270, 290))},
    "softcap": {"queries": 300, "keys": 300, "mask": Causal(), "softcap": 2.0},
    "bias": {
        "queries": 300, "keys": 300,
        "bias": np.random.default_rng(1).normal(size=(1, 4, 300, 300)).astype(np.float32),
    },
    "sinks": {"queries": 300, "keys": 300, "sinks": np.array([0.5, 1, 2, 3], np.float32)},
    "steps": {
        "queries": 303, "keys": 303,
        "mask": Steps(((Causal(), 300, 300), (None, 1, 301), (Causal(), 2, 303))),
    },
    "prefix": {"queries": 300, "keys": 300, "mask": Prefix(37)},
    "packed": {
        "queries": 300, "keys": 300,
        "mask": Causal() & Packed(np.arange(600).reshape(2, 300) // 100),
    },
    "finfo.min": {
        "queries": 300, "keys": 300,
        "bias": np.where(visible(300, 300), 0, np.finfo(np.float32).min).astype(np.float32),
    },
    "torch": {"queries": 300, "keys": 530, "torch_tensors": True, "mask": Causal()},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Pyramids begin at level 2, so that small maps have some."""
    monkeypatch.setattr(tiles_room, "_DIRECT", 1)
    monkeypatch.setattr(tiles_room, "TILE", 64)
    monkeypatch.setattr(tiles_room, "_MOST_CELLS", 256)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_tile_is_what_its_weights_say(case, scaled):
    found = made(**CASES[case])
    maker = TileMaker([found], Kept(1 << 26))
    batch, head = 1, 2
    weights = np.array(np.asarray(found[batch, head]), np.float64)
    queries, keys = weights.shape
    if scaled:
        largest = weights.max(-1, keepdims=True)
        weights = weights / np.where(largest > 0, largest, 1)
    count = levels(queries, keys)
    assert 64 << count - 1 >= max(queries, keys) > (64 << count - 2 if count > 1 else 0)
    for level in range(count):
        cell = 1 << level
        down, across = (-(-total // (64 * cell)) for total in (queries, keys))
        for how in ("max", "mean"):
            expected = pooled(weights, cell, how)
            rows = []
            for y in range(down):
                row = []
                for x in range(across):
                    tile, exact = maker.tile(Head(0, batch, head), level, x, y, how, scaled=scaled)
                    assert exact
                    assert tile.dtype == np.float32
                    row.append(tile)
                rows.append(np.concatenate(row, axis=1))
            whole = np.concatenate(rows)
            np.testing.assert_allclose(whole, expected, rtol=2e-5, atol=1e-7)
    assert down == across == 1


@pytest.mark.parametrize(
    "place", [(1, 0, 0), (0, 0, 9), (0, 9, 0), (0, -1, 0), (9, 0, 0), (-1, 0, 0), (5000, 0, 0)]
)
def test_a_tile_that_is_not_there(place):
    level, x, y = place
    maker = TileMaker([made(60, 60)], Kept(1 << 20))
    with pytest.raises(IndexError, match="60 queries and 60 keys"):
        maker.tile(Head(0, 0, 0), level, x, y)


@pytest.mark.parametrize("how", ["max", "mean"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_draft_reads_some_rows_and_says_so(monkeypatch, how, scaled):
    monkeypatch.setattr(tiles_room, "_DRAFT", 44 * 700 * 4)
    found = made(700, 700, Causal())
    maker = TileMaker([found], Kept(1 << 26))
    head, top = Head(0, 0, 1), levels(700, 700) - 1
    draft, exact = maker.tile(head, top, 0, 0, how, scaled=scaled, draft=True)
    assert not exact
    whole, exact = maker.tile(head, top, 0, 0, how, scaled=scaled)
    assert exact
    weights = np.array(found[0, 1], np.float64)
    if scaled:
        weights /= weights.max(-1, keepdims=True)
    cell = 1 << top
    rows = tiles_room._spread(range(700), cell, 4)
    expected = [
        getattr(weights[rows[at : at + 4], left : left + cell], how)()
        for at in range(0, len(rows), 4)
        for left in range(0, 700, cell)
    ]
    np.testing.assert_allclose(draft.ravel(), expected, rtol=2e-5, atol=1e-7)
    assert draft.shape == whole.shape
    again, exact = maker.tile(head, top, 0, 0, how, scaled=scaled, draft=True)
    assert exact  # once the pass has run
    np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize("how", ["max", "mean"])
@pytest.mark.parametrize("case", ["causal", "everything", "padding", "finfo.min", "torch"])
def test_small_maps_of_all_heads(case, how):
    found = made(**CASES[case])
    small = small_maps(found.call, 1, 32, how)
    assert small.exact
    assert max(small.values.shape[1:]) <= 32
    weights = np.array(np.asarray(found[1]), np.float64)
    for head in range(4):
        np.testing.assert_allclose(
            small.values[head], pooled(weights[head], small.cell, how), rtol=2e-5, atol=1e-7
        )


def test_small_maps_of_a_very_long_text_are_of_some_rows(monkeypatch):
    monkeypatch.setattr(tiles_room, "_SMALL", 1000)
    monkeypatch.setattr(tiles_room, "_DRAFT", 2 * 700 * 32 * 8)
    found = made(700, 700, Causal())
    some = small_maps(found.call, 0, 32, "mean")
    monkeypatch.undo()
    whole = small_maps(found.call, 0, 32, "mean")
    assert not some.exact
    assert some.rows_read == 22 * 8
    assert some.values.shape == whole.values.shape
    assert some.values.sum() == pytest.approx(whole.values.sum(), rel=0.1)  # rows sum to 1


def test_a_pyramid_is_kept_beside_the_recording(tmp_path, monkeypatch):
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(tiles_room.time, "monotonic", lambda: next(clock))
    found, place = made(700, 700, Causal()), tmp_path / "run.safetensors.tiles"
    head, top = Head(0, 0, 1), levels(700, 700) - 1
    first, _ = TileMaker([found], Kept(1 << 26), folder=TileFolder(place, "ab")).tile(
        head, top, 0, 0
    )
    (file,) = place.iterdir()
    monkeypatch.setattr(TileMaker, "_cells", None)  # nothing may be computed any more
    again = TileMaker([found], Kept(1 << 26), folder=TileFolder(place, "ab"))
    np.testing.assert_array_equal(again.tile(head, top, 0, 0)[0], first)
    other = TileMaker([found], Kept(1 << 26), folder=TileFolder(place, "cd"))
    with pytest.raises(TypeError):  # of another recording: computed anew
        other.tile(head, top, 0, 0)
    file.write_bytes(file.read_bytes()[:-100])  # cut off
    with pytest.raises(TypeError):
        TileMaker([found], Kept(1 << 26), folder=TileFolder(place, "ab")).tile(head, top, 0, 0)


def test_a_folder_that_cannot_be_written_is_none(tmp_path):
    file = tmp_path / "a file"
    file.write_text("")
    folder = TileFolder(file / "tiles", "ab")
    folder.write("0-0-0-5", np.zeros((2, 3, 3), np.float32))
    assert folder.read("0-0-0-5", (2, 3, 3)) is None


def test_a_folder_has_bounded_room(tmp_path):
    folder = TileFolder(tmp_path / "tiles", "ab", room=10_000)
    for number in range(20):
        folder.write(f"{number}", np.zeros((2, 20, 20), np.float32))
    held = sum(file.stat().st_size for file in folder.path.iterdir())
    assert 3_000 < held <= 10_000
    assert folder.read("19", (2, 20, 20)) is not None


def test_work_stops_when_nobody_waits():
    stop = Stop()
    stop.set()
    maker = TileMaker([made(700, 700, Causal())], Kept(1 << 26))
    with pytest.raises(Stopped):
        maker.tile(Head(0, 0, 0), 4, 0, 0, stop=stop)
    with pytest.raises(Stopped):
        small_maps(made(700, 700).call, 0, 32, stop=stop)
    assert maker.tile(Head(0, 0, 0), 4, 0, 0)[1]


def test_kept_results_are_bounded_and_computed_once():
    kept, calls = Kept(4000), []

    def compute(number):
        calls.append(number)
        return np.zeros(250, np.float32)

    for number in (1, 2, 3, 4, 1, 5, 1):
        kept.get(number, lambda stop, number=number: compute(number), Stop())
    assert calls == [1, 2, 3, 4, 5]
    assert kept.held_bytes == 4000
    assert kept.known(2) is None  # the one that was asked for longest ago
    assert kept.known(1) is not None
    kept.get("large", lambda stop: np.zeros(5000, np.float32), Stop())
    assert kept.held_bytes <= 4000


def test_two_who_ask_at_once_share_the_work():
    kept, started, go = Kept(1 << 20), threading.Event(), threading.Event()
    calls, first, second = [], Stop(), Stop()

    def compute(stop):
        calls.append(1)
        started.set()
        while not go.wait(0.01):
            stop.check()
        return np.ones(3)

    results = []

    def ask(stop):
        try:
            results.append(kept.get("a", compute, stop))
        except Stopped:
            results.append(None)

    threads = [threading.Thread(target=ask, args=(stop,)) for stop in (first, second)]
    threads[0].start()
    started.wait(10)
    threads[1].start()
    while kept._running["a"].stop.stops == [first]:
        pass
    first.set()  # the one who computes has left, the other still waits
    go.set()
    for thread in threads:
        thread.join(10)
    assert len(calls) == 1
    assert all(result is not None for result in results)

    started.clear()
    go.clear()
    third = Stop()

    def leave():
        with pytest.raises(Stopped):
            kept.get("b", compute, third)

    thread = threading.Thread(target=leave)
    thread.start()
    started.wait(10)
    third.set()
    thread.join(10)
    assert not thread.is_alive()
    assert not kept._running


def test_a_part_is_a_call_of_its_own():
    found = made(40, 50, Causal(), heads=6, group=3)
    weights = found[1, 4]
    rows = [2, 3, 9, 30, 31]
    part = part_of_head(found.call, 1, 4, rows, range(11, 37))
    assert part.shape == (1, 1, 5, 26)
    got = part.weights([0], [0], range(5), range(26))[0, 0]
    np.testing.assert_allclose(got, weights[rows, 11:37], rtol=1e-5, atol=1e-7)
    assert part.mask.visible_columns(range(2), 5, 26) == range(3)  # keys to 13


def test_weights_of_a_real_fused_call_are_those_of_the_definition():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, 100, 16, dtype=torch.float64) for n in (4, 2, 2))
    _, expected, lse = jumok.attention(q, k, v, causal=True)
    _, lse = fused.attention(q.float(), k.float(), v.float(), mask=Causal())
    call = AttentionCall(
        q=q.float().numpy(), k=k.float().numpy(), v=None, mask=Causal(), bias=None, scale=0.25,
        lse=lse.numpy(),
    )  # fmt: skip
    maker = TileMaker([AttentionMap(Source(call))], Kept(1 << 20))
    for y in range(2):
        for x in range(2):
            tile, _ = maker.tile(Head(0, 0, 3), 0, x, y)
            part = expected[0, 3, 64 * y : 64 * y + 64, 64 * x : 64 * x + 64].numpy()
            np.testing.assert_allclose(tile, part, atol=1e-6)
