"""The whole state of a run, saved and loaded: going on is as if nothing had stopped it.

A snapshot holds weights, the optimizer's state, the moving average, the step (which places the
run in its data and in its schedule), the run's numbers, and the state of every random number
generator of every process. With as many processes as before the run goes on bit for bit; with
more or fewer, weights and optimizer are the same and only dropout draws other numbers.

How it lies on the disk is in `jumok.training.snapshot_files`.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from jumok.training import snapshot_files as files
from jumok.training.parallel import World, unwrapped
from jumok.training.snapshot_files import DamagedError

__all__ = [
    "DamagedError",
    "SnapshotError",
    "State",
    "bytes_of_snapshot",
    "fingerprint_of_frozen",
    "latest",
    "load",
    "require_room",
    "save",
]


class SnapshotError(RuntimeError):
    """A snapshot could not be written; those before it are whole, and the run can go on."""


class Average(Protocol):
    """The moving average of the weights, see `jumok.training.optimiser.MovingAverage`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class State:
    """What a run is, at a moment.

    Args:
        module: from `World.wrap`. Frozen weights are not saved: they come from where they came
            from before.
        optimiser: over parameters of the module.
        average: of the weights, if there is one.
        step: how many steps are done.
        numbers: anything that JSON can hold, such as the tokens read so far.
        validation: the last validation loss; the snapshot with the lowest is kept.
        frozen: from `fingerprint_of_frozen`, made before `World.wrap`.
    """

    module: nn.Module
    optimiser: torch.optim.Optimizer
    average: Average | None = None
    step: int = 0
    numbers: dict[str, Any] = field(default_factory=dict)
    validation: float | None = None
    frozen: str = ""


# Saving ---------------------------------------------------------------------------------------


def save(folder: Path, state: State, world: World, keep: int = 2) -> Path:
    """Save the state; all processes call it together.

    Args:
        folder: of the run's snapshots, which all processes see; made if it is not there.
        state: of this process.
        world: this process and the others.
        keep: how many of the newest snapshots stay, besides the one with the lowest validation
            loss.

    Returns:
        ``folder/step-00000100``.

    Raises:
        SnapshotError: in all processes, if one of them could not write.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least 1 snapshot")
    path = folder / f"step-{state.step:08d}"
    if world.share(path.is_dir() and files.is_whole(path)):
        return path  # gone on from it, and not a step done since
    temporary = folder / f".step-{state.step:08d}.part"
    try:
        _by_main(world, lambda: files.temporary_for(folder, state.step))
        tensors, manifest = _taken(state)
        writer = files.PartsWriter(temporary)
        with _alone_without_a_word():
            save_tensors(tensors, storage_writer=writer, no_dist=world.size == 1)
        manifest["random"] = world.gather(_random_state(world.device))
        manifest["files"] = writer.files
        _by_main(world, lambda: files.write_manifest(temporary, manifest))
        _by_main(world, lambda: files.commit(temporary))
    except (OSError, CheckpointException) as error:
        if world.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        whole = files.entries(folder)
        kept = f"that of step {whole[-1].step} is whole" if whole else "there is none before it"
        raise SnapshotError(
            f"the snapshot of step {state.step} could not be written to {folder} "
            f"({_reason(error)}); {kept}"
        ) from error
    if world.is_main:
        try:
            files.thin_out(folder, keep)
        except OSError as error:
            warnings.warn(f"{folder}: old snapshots stay there ({_reason(error)})", stacklevel=2)
    return path


def _by_main(world: World, act: Callable[[], object]) -> None:
    """Let the main process do it; what goes wrong goes wrong in all of them."""
    failure: OSError | None = None
    if world.is_main:
        try:
            act()
        except OSError as error:
            failure = error
    failure = world.share(failure)
    if failure is not None:
        raise failure


def _reason(error: BaseException) -> str:
    if not isinstance(error, CheckpointException):
        return getattr(error, "strerror", None) or str(error)
    for rank, (inner, _) in sorted(error.failures.items()):
        if not isinstance(inner, OSError):
            raise inner
        return f"process {rank}: {_reason(inner)}" if len(error.failures) > 1 else _reason(inner)
    raise AssertionError("a failure without a reason")


@contextmanager
def _alone_without_a_word() -> Iterator[None]:
    """PyTorch warns that one process alone is one process alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _taken(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state, and the rest."""
    tensors = {f"weights.{name}": tensor for name, tensor in _weights(state.module).items()}
    names = _names(state.module)
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, values in state.optimiser.state.items():
        name = names[id(parameter)]
        numbers[name] = {}
        for key, value in values.items():
            if isinstance(value, Tensor) and value.ndim:
                tensors[f"optimiser.{name}.{key}"] = value
                numbers[name][key] = {"tensor": True}
            elif isinstance(value, Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                numbers[name][key] = {"value": value.item(), "dtype": dtype}
            else:
                numbers[name][key] = {"value": value}
    average = {} if state.average is None else state.average.state_dict()
    tensors |= {f"average.{_clean(k)}": v for k, v in average.items() if isinstance(v, Tensor)}
    described = {
        name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in tensors.items()
    }
    return tensors, {
        "step": state.step,
        "validation": state.validation,
        "frozen": state.frozen,
        "numbers": state.numbers,
        "optimiser": numbers,
        "average": {k: v for k, v in average.items() if not isinstance(v, Tensor)},
        "tensors": described,
    }


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Name → trainable parameter or buffer, each once, named as without any wrapper."""
    module = unwrapped(module)
    seen = {id(p) for p in module.parameters() if not p.requires_grad}
    found = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen and tensor.numel():
            seen.add(id(tensor))
            found[_clean(name)] = tensor.detach()
    return found


def _names(module: nn.Module) -> dict[int, str]:
    return {id(p): _clean(name) for name, p in unwrapped(module).named_parameters()}


def _clean(name: str) -> str:
    """A parameter's name without what `torch.compile` puts into it."""
    return name.replace("_orig_mod.", "")


# Loading --------------------------------------------------------------------------------------


def latest(folder: Path, world: World) -> Path | None:
    """The newest whole snapshot, if there is any; all processes call it together.

    A damaged one is told in a warning, and the one before is taken. What a killed process has
    left half-written is deleted.

    Raises:
        DamagedError: there are snapshots, and none of them is whole.
    """
    found: Path | None = None
    failure: ValueError | OSError | None = None
    if world.is_main:
        try:
            files.sweep(folder)
            found = files.newest_whole(folder)
        except (ValueError, OSError) as error:
            failure = error
    found, failure = world.share((found, failure))
    if failure is not None:
        raise failure
    return found


def load(path: Path, state: State, world: World) -> None:
    """Put a snapshot into the state, in place; all processes call it together.

    Args:
        path: from `latest`.
        state: made as that of the run that was saved; step, numbers and validation are set too.
        world: this process and the others, which may be more or fewer than were saved.

    Raises:
        ValueError: the snapshot is of another model or another optimizer.
    """
    manifest = files.read_manifest(path)
    if manifest["frozen"] != state.frozen:
        raise ValueError(
            f"{path} belongs to other frozen weights: the model that this run began from has "
            f"changed since. Bring it back, or begin anew in another folder"
        )
    tensors = {f"weights.{name}": tensor for name, tensor in _weights(state.module).items()}
    moments = _empty_moments(state, manifest)
    tensors |= {f"optimiser.{n}.{k}": t for n, of in moments.items() for k, t in of.items()}
    average = {} if state.average is None else state.average.state_dict()
    tensors |= {f"average.{_clean(k)}": v for k, v in average.items() if isinstance(v, Tensor)}
    _check_same(path, tensors, manifest["tensors"])
    reader = HuggingFaceStorageReader(str(path))
    with _alone_without_a_word():
        load_tensors(tensors, storage_reader=reader, no_dist=world.size == 1)
    _give_to_optimiser(state, manifest["optimiser"], moments)
    if state.average is not None:
        state.average.load_state_dict({**average, **manifest["average"]})
    state.step, state.numbers = manifest["step"], manifest["numbers"]
    state.validation = manifest["validation"]
    _set_random_state(manifest["random"], world)


def _empty_moments(state: State, manifest: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Room for the optimizer's tensors, each cut over the processes as its parameter is."""
    parameters = {_clean(n): p for n, p in unwrapped(state.module).named_parameters()}
    moments: dict[str, dict[str, Tensor]] = {}
    for name, values in manifest["optimiser"].items():
        moments[name] = {}
        for key, value in values.items():
            if "tensor" not in value:
                continue
            described = manifest["tensors"][f"optimiser.{name}.{key}"]
            dtype, shape = getattr(torch, described[0]), described[1]
            parameter = parameters.get(name)
            if parameter is not None and list(parameter.shape) == shape:
                moments[name][key] = torch.zeros_like(parameter.detach(), dtype=dtype)
            else:
                moments[name][key] = torch.zeros(shape, dtype=dtype)
    return moments


def _check_same(path: Path, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
    """The state and the snapshot have the same tensors."""
    for name in sorted(tensors.keys() ^ saved.keys()):
        where = "is not in the snapshot" if name in tensors else "is in the snapshot alone"
        raise ValueError(
            f"{path} is a snapshot of another model or another optimizer: {name} {where}. Give the "
            f"settings it was made with, or another folder"
        )
    for name, tensor in tensors.items():
        found = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        if found != saved[name]:
            raise ValueError(
                f"{path} is a snapshot of another model: {name} is {saved[name][0]} "
                f"{tuple(saved[name][1])} there, and {found[0]} {tuple(found[1])} here. Give the "
                f"settings it was made with, or another folder"
            )


def _give_to_optimiser(
    state: State, saved: dict[str, Any], moments: dict[str, dict[str, Tensor]]
) -> None:
    names = _names(state.module)
    whole = state.optimiser.state_dict()
    found: dict[int, dict[str, Any]] = {}
    for live, group in zip(state.optimiser.param_groups, whole["param_groups"], strict=True):
        for parameter, number in zip(live["params"], group["params"], strict=True):
            name = names[id(parameter)]
            if name not in saved:  # it has not been stepped yet
                continue
            found[number] = dict(moments[name])
            for key, value in saved[name].items():
                if "dtype" in value:
                    dtype = getattr(torch, value["dtype"])
                    found[number][key] = torch.tensor(value["value"], dtype=dtype)
                elif "value" in value:
                    found[number][key] = value["value"]
    state.optimiser.load_state_dict({"state": found, "param_groups": whole["param_groups"]})


def fingerprint_of_frozen(module: nn.Module) -> str:
    """What tells frozen weights, which no snapshot holds, from others; "" if all learn."""
    digest, found = hashlib.sha256(), False
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            digest.update(_clean(name).encode())
            digest.update(files.bytes_of(parameter))
            found = True
    return digest.hexdigest() if found else ""


# Random numbers -------------------------------------------------------------------------------


def _random_state(device: torch.device) -> dict[str, Any]:
    version, keys, gauss = random.getstate()
    _, array, place, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "python": [version, list(keys), gauss],
        "numpy": [np.asarray(array).tolist(), int(place), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if device.type != "cpu":
        device_state = torch.get_device_module(device).get_rng_state()
        state["device"] = device_state.cpu().numpy().tobytes().hex()
    return state


def _set_random_state(saved: list[dict[str, Any]], world: World) -> None:
    state = saved[world.rank % len(saved)]
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    array, place, has_gauss, cached = state["numpy"]
    words = np.array(array, dtype=np.uint32)
    np.random.set_state(("MT19937", words, place, has_gauss, cached))
    torch.set_rng_state(_tensor_of(state["torch"]))
    if world.device.type != "cpu" and "device" in state:
        torch.get_device_module(world.device).set_rng_state(_tensor_of(state["device"]))
    if len(saved) != world.size:  # each its own numbers, the same ones every time
        seed = hashlib.sha256(f"{world.rank}/{world.size} {saved[0]['torch']}".encode()).digest()
        random.seed(seed)
        np.random.seed(int.from_bytes(seed[:4], "little"))
        torch.manual_seed(int.from_bytes(seed[:8], "little", signed=True))


def _tensor_of(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


# Room -----------------------------------------------------------------------------------------


def bytes_of_snapshot(module: nn.Module, average: bool = False) -> int:
    """How many bytes a snapshot takes: weights, AdamW's two moments, and the average."""
    weights = sum(p.numel() * p.dtype.itemsize for p in module.parameters() if p.requires_grad)
    return weights * (4 if average else 3)


def require_room(folder: Path, n_bytes: int, keep: int) -> None:
    """See before a run that its snapshots can be written.

    Args:
        folder: of the snapshots; made if it is not there.
        n_bytes: of one snapshot, see `bytes_of_snapshot`.
        keep: as in `save`: so many are kept, the best besides, and one more while it is written.

    Raises:
        OSError: the folder cannot be written to, or has too little room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free, needed = shutil.disk_usage(folder).free, (keep + 2) * n_bytes
    if free + there < needed:
        raise OSError(
            f"{folder}: {_size(free)} are free there, and the run needs {_size(needed - there)} "
            f"({keep} snapshots, the best and one being written, {_size(n_bytes)} each): make "
            f"room, keep fewer, or choose another folder"
        )


def _size(n_bytes: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} GB"
