"""Snapshots: the whole state comes back bit for bit; a torn or half-written one is never taken."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from jumok.model.config import Config
from jumok.model.transformer import Decoder
from jumok.training import snapshot, snapshot_files
from jumok.training.parallel import World, unwrapped
from jumok.training.snapshot import DamagedError, State

ALONE = World(torch.device("cpu"))
CONFIG = Config(vocab_size=37, emb_dim=16, n_layers=2, n_heads=2, dropout=0.1, tied_head=False)


class Average:
    """A moving average of weights, as the loop's."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = {name: p.detach().clone() for name, p in module.named_parameters()}
        self.updates = 0

    def update(self, module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            self.weights[name].lerp_(parameter.detach(), 0.1)
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {**self.weights, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, weight in self.weights.items():
            weight.copy_(state[name])


class Run:
    """A run in small: dropout and data draw from every generator there is."""

    def __init__(self, compiled: bool = False, fused: bool | None = True, seed: int = 5) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        model: nn.Module = Decoder(CONFIG).train()
        if compiled:
            model = torch.compile(model, backend="eager")  # type: ignore[assignment]
        matrices = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim < 2]
        optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
            lr=1e-2,
            fused=fused,
        )
        self.state = State(model, optimiser, Average(model))
        self.losses: list[float] = []

    def go(self, steps: int) -> Run:
        for _ in range(steps):
            shift = random.randrange(5) + int(np.random.randint(5))
            ids = torch.randint(0, 37, (2, 9)).add(shift) % 37
            logits = unwrapped(self.state.module)(ids[:, :-1])  # a test of names, not of compiling
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            self.state.optimiser.step()
            self.state.optimiser.zero_grad()
            assert isinstance(self.state.average, Average)
            self.state.average.update(self.state.module)
            self.state.step += 1
            self.losses.append(loss.item())
        self.state.numbers = {"tokens": 16 * self.state.step, "losses": self.losses}
        return self

    def tensors(self) -> dict[str, Tensor]:
        taken, numbers = snapshot._taken(self.state)
        for name, values in numbers["optimiser"].items():
            taken[f"{name} step"] = torch.tensor(values["step"]["value"])
        return {name: tensor.clone() for name, tensor in taken.items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("fused", [True, None])
def test_ten_steps_are_five_and_five(tmp_path: Path, fused: bool | None) -> None:
    undisturbed = Run(fused=fused).go(10)
    first = Run(fused=fused).go(5)
    path = snapshot.save(tmp_path, first.state, ALONE)
    assert path == tmp_path / "step-00000005"

    second = Run(fused=fused, seed=6).go(2)  # other weights, other random numbers: all is replaced
    assert snapshot.latest(tmp_path, ALONE) == path
    snapshot.load(path, second.state, ALONE)
    assert_same(second.tensors(), first.tensors())
    assert (second.state.step, second.state.numbers) == (5, first.state.numbers)
    second.losses = list(second.state.numbers["losses"])
    second.go(5)
    assert second.losses == undisturbed.losses
    assert_same(second.tensors(), undisturbed.tensors())


@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_and_plain_models_read_each_others_snapshots(
    tmp_path: Path, compiled: bool
) -> None:
    first, second = Run(compiled=compiled).go(2), Run(compiled=not compiled, seed=6)
    path = snapshot.save(tmp_path, first.state, ALONE)
    snapshot.load(path, second.state, ALONE)
    assert_same(second.tensors(), first.tensors())
    with safe_open(path / "rank-00000.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "_orig_mod" in name]  # noqa: SIM118


def test_nothing_but_json_and_safetensors_is_written(tmp_path: Path) -> None:
    path = snapshot.save(tmp_path, Run().go(1).state, ALONE)
    assert sorted(p.name for p in path.iterdir()) == ["rank-00000.safetensors", "snapshot.json"]
    assert json.loads((path / "snapshot.json").read_text())["step"] == 1
    state = Run().go(1).tensors()
    with safe_open(path / "rank-00000.safetensors", "pt") as file:  # any reader reads it
        for name in file.keys():  # noqa: SIM118
            assert torch.equal(file.get_tensor(name), state[name]), name


def test_tensors_of_every_type_come_back(tmp_path: Path) -> None:
    """The smaller types after the larger ones, so that each is aligned; no row, one number."""
    module = nn.Module()
    tensors = {
        "flags": torch.tensor([True, False, True]),
        "narrow": torch.tensor([1.5], dtype=torch.bfloat16),
        "wide": torch.tensor([[1 / 3]], dtype=torch.float64),
        "count": torch.tensor(7),
        "none": torch.empty(0, 3),
        "small": torch.tensor([1, 2, 255], dtype=torch.uint8),
    }
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor.clone())
    weight = nn.Parameter(torch.ones(2))
    module.register_parameter("weight", weight)
    state = State(module, torch.optim.SGD([weight], lr=1.0))
    path = snapshot.save(tmp_path, state, ALONE)
    for buffer in module.buffers():
        buffer.zero_()
    snapshot.load(path, state, ALONE)
    for name, tensor in tensors.items():
        assert torch.equal(module.get_buffer(name), tensor), name


def test_frozen_weights_are_not_saved_and_not_touched(tmp_path: Path) -> None:
    def new(fill: float) -> State:
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        for parameter in module.parameters():
            nn.init.constant_(parameter, fill)
        module[0].requires_grad_(False)
        return State(module, torch.optim.AdamW(module[1].parameters()))

    path = snapshot.save(tmp_path, new(1.0), ALONE)
    other = new(2.0)
    snapshot.load(path, other, ALONE)
    assert other.module[0].weight.eq(2.0).all()  # type: ignore[index]
    assert other.module[1].weight.eq(1.0).all()  # type: ignore[index]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    run = Run()
    for loss in (3.0, 1.0, 2.0, float("nan"), 1.5, 1.7):
        run.state.step += 1
        run.state.validation = loss
        snapshot.save(tmp_path, run.state, ALONE, keep=2)
    assert [entry.step for entry in snapshot_files.entries(tmp_path)] == [2, 5, 6]
    best = snapshot_files.best_entry(tmp_path)
    assert best is not None
    assert best.step == 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("file", ["rank-00000.safetensors", "snapshot.json"])
@pytest.mark.parametrize("damage", [_flip, _cut, Path.unlink])
def test_a_damaged_snapshot_is_noticed_and_the_one_before_is_taken(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    run = Run().go(1)
    older = snapshot.save(tmp_path, run.state, ALONE)
    saved = run.tensors()
    newer = snapshot.save(tmp_path, run.go(1).state, ALONE)
    damage(newer / file)
    with pytest.warns(UserWarning, match=rf"{newer.name}.*looking for the one before"):
        assert snapshot.latest(tmp_path, ALONE) == older
    snapshot.load(older, run.state, ALONE)
    assert_same(run.tensors(), saved)
    # The run comes to that step again and puts a whole snapshot in the place of the damaged one.
    snapshot.save(tmp_path, run.go(1).state, ALONE)
    assert snapshot.latest(tmp_path, ALONE) == newer
    for path in (older, newer):
        damage(path / file)
    with (
        pytest.warns(UserWarning, match="looking for the one before"),
        pytest.raises(DamagedError, match="every snapshot in"),
    ):
        snapshot.latest(tmp_path, ALONE)


def test_half_written_snapshots_are_swept(tmp_path: Path) -> None:
    run = Run().go(1)
    path = snapshot.save(tmp_path, run.state, ALONE)
    shutil.copytree(path, tmp_path / ".step-00000002.part")
    shutil.copytree(path, tmp_path / ".step-00000000.gone")
    assert snapshot.latest(tmp_path, ALONE) == path
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert snapshot.latest(tmp_path / "none", ALONE) is None


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    path = snapshot.save(tmp_path, Run().go(1).state, ALONE)
    wider = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"another model or another optimizer: .* is in the snap"):
        snapshot.load(path, State(wider, torch.optim.AdamW(wider.parameters())), ALONE)
    other = Run()
    weight = other.state.module.embedding.weight
    weight.data = torch.zeros(38, 16)
    with pytest.raises(ValueError, match=r"weights.embedding.weight is float32 \(37, 16\) there"):
        snapshot.load(path, other.state, ALONE)


FULL = """
import resource, signal, sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from training.test_snapshot import ALONE, Run, snapshot
folder = Path(sys.argv[1])
run = Run().go(1)
snapshot.save(folder, run.state, ALONE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))  # the disk takes no more
run.go(1)
try:
    snapshot.save(folder, run.state, ALONE)
except snapshot.SnapshotError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
run.go(1)
snapshot.save(folder, run.state, ALONE)
"""


def test_a_write_that_fails_halfway_leaves_the_old_snapshot(tmp_path: Path) -> None:
    """The real thing, in a child: the system refuses to write on in the middle of a file."""
    folder = tmp_path / "snapshots"
    tests = str(Path(__file__).parents[1])
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL, str(folder), tests],
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == (
        f"the snapshot of step 2 could not be written to {folder} (File too large); that of step "
        f"1 is whole\n"
    )
    assert [entry.step for entry in snapshot_files.entries(folder)] == [1, 3]  # and the run went on
    undisturbed = Run().go(1)
    shutil.rmtree(folder / "step-00000003")
    found = snapshot.latest(folder, ALONE)
    assert found is not None
    again = Run(seed=6)
    snapshot.load(found, again.state, ALONE)
    assert_same(again.tensors(), undisturbed.tensors())


def test_room_is_looked_for_before_training(tmp_path: Path) -> None:
    model = Run().state.module
    weights = sum(p.numel() for p in model.parameters()) * 4
    assert snapshot.bytes_of_snapshot(model) == 3 * weights  # float32, and two moments
    assert snapshot.bytes_of_snapshot(model, average=True) == 4 * weights
    snapshot.require_room(tmp_path, 3 * weights, keep=2)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(OSError, match=r"are free there, and the run needs .* \(2 snapshots"):
        snapshot.require_room(tmp_path, free, keep=2)


def test_a_snapshot_takes_as_many_bytes_as_was_said(tmp_path: Path) -> None:
    run = Run().go(1)
    path = snapshot.save(tmp_path, run.state, ALONE)
    said = snapshot.bytes_of_snapshot(run.state.module, average=True)
    size = (path / "rank-00000.safetensors").stat().st_size
    assert said < size < said + 20_000  # and names
