"""One process or many: which rows are mine, whose gradients are added, and how all agree.

Under ``torchrun`` every process runs the same program; what each is asked for differs only by its
`World`. Gradients are *added* over the processes, never averaged: the objective gives a sum over
targets, and the step divides it by the targets of all processes (see `jumok.training`). So a
step is the same arithmetic for any number of processes, up to the order of float32 sums.

Two ways to share the work (`World.wrap`):

- "ddp": each process holds the whole model (`torch.nn.parallel.DistributedDataParallel`; Li et
  al. 2020).
- "fsdp": weights, gradients and the optimizer's state are cut over the processes, block by block
  (`torch.distributed.fsdp.fully_shard`; Zhao et al. 2023).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from jumok.model.blocks import Block, DecoderBlock

__all__ = [
    "LostProcessError",
    "MainProcessError",
    "MissingDeviceError",
    "World",
    "clip",
    "join",
    "unwrapped",
    "whole_tensor",
]

_Value = TypeVar("_Value")
_PATIENCE = timedelta(days=30)  # others wait that long while the main process tokenises a corpus


class LostProcessError(RuntimeError):
    """Another process of this run has ended, so that this one cannot go on."""


class MissingDeviceError(ValueError):
    """This process has no device to compute on; others may have one."""


class MainProcessError(RuntimeError):
    """The main process could not go on; it says why itself."""


class World:
    """One process alone. `join` gives one that knows of others where there are any.

    Attributes:
        rank: number of this process, from 0.
        size: how many processes there are.
        device: where this process computes.
        parallel: "ddp" or "fsdp"; `None` for one process alone.
    """

    rank = 0
    size = 1
    parallel: str | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def is_main(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def wrap(self, objective: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        """The module to call in training, whose gradients are those of all processes.

        Args:
            objective: computes a loss; its parameters are on this process's device. Make the
                optimizer after this call: under FSDP the parameters are replaced.
            dtype: that blocks compute in under FSDP; weights and sums of gradients stay as they
                are. `None`: as the weights.
        """
        return objective

    def sum(self, *values: float) -> tuple[float, ...]:
        """Each value added over all processes, in float64."""
        return values

    def agree(self, flag: bool) -> bool:
        """Whether the flag is up in any process: the same answer in all."""
        return flag

    def gather(self, value: _Value) -> list[_Value]:
        """The values of all processes, by rank; in each of them."""
        return [value]

    def share(self, value: _Value) -> _Value:
        """The value of the main process, in all of them."""
        return value

    def wait(self) -> None:
        """Until all processes are here."""

    def last(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Around a micro-batch: gradients are exchanged only in the last one of a step.

        Args:
            module: from `wrap`.
            last: whether this is the last micro-batch of the step.
        """
        return nullcontext()

    def main_first(self) -> AbstractContextManager[None]:
        """What is inside is done by the main process, and then by the others.

        Raises:
            MainProcessError: in the others, if the main process failed.
        """
        return nullcontext()

    def guard(self) -> AbstractContextManager[None]:
        """Around everything: a neighbour's end is told in words.

        Raises:
            LostProcessError: another process has ended.
        """
        return nullcontext()

    def whole(self, model: nn.Module) -> nn.Module | None:
        """The model with whole weights, in the main process; `None` in the others.

        Call it in all processes. Under FSDP it is a copy on the CPU, else the model itself.
        """
        return model

    def leave(self) -> None:
        """Say goodbye to the other processes; the last call."""


class _ManyProcesses(World):
    """Several processes, each with the whole model (DDP)."""

    parallel = "ddp"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._patient = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def wrap(self, objective: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        from torch.nn.parallel import DistributedDataParallel

        place = [self.device.index] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            objective, device_ids=place, gradient_as_bucket_view=True, forward_sync_buffers=False
        )
        wrapped.register_comm_hook(None, lambda _, bucket: _added(bucket))
        return wrapped

    def sum(self, *values: float) -> tuple[float, ...]:
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return tuple(total.tolist())

    def agree(self, flag: bool) -> bool:
        raised = torch.tensor(int(flag))
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return bool(raised.item())

    def gather(self, value: _Value) -> list[_Value]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def share(self, value: _Value) -> _Value:
        return _shared(value, None)  # type: ignore[no-any-return]

    def wait(self) -> None:
        dist.all_reduce(torch.zeros(1))  # on the CPU, where `dist.barrier` may take the GPU

    def last(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else module.no_sync()  # type: ignore[operator]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        if not self.is_main and not _shared(None, self._patient):
            raise MainProcessError("the main process could not go on; it says why")
        try:
            yield
        except BaseException:
            if self.is_main:
                _shared(False, self._patient)
            raise
        if self.is_main:
            _shared(True, self._patient)

    @contextmanager
    def guard(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
                raise
            raise LostProcessError(
                f"process {self.rank} of {self.size} lost a neighbour: another process of this "
                f"run has ended, see above for its reason. Start the same command again: it goes "
                f"on from the last snapshot"
            ) from error

    def whole(self, model: nn.Module) -> nn.Module | None:
        return model if self.is_main else None

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class _Shards(_ManyProcesses):
    """Several processes that share weights, gradients and the optimizer's state (FSDP2)."""

    parallel = "fsdp"

    def wrap(self, objective: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            FSDPModule,
            MixedPrecisionPolicy,
            fully_shard,
        )

        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32
        )
        self._skeleton, self._wrapped = _without_numbers(objective), objective
        mesh = init_device_mesh(self.device.type, (self.size,))
        for block in [module for module in objective.modules() if isinstance(module, Block)]:
            if isinstance(block, DecoderBlock):
                # Keys and values of the source are formed before the block itself is called.
                fully_shard(block.cross_attention.kv, mesh=mesh, mp_policy=policy)
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(objective, mesh=mesh, mp_policy=policy)
        for module in objective.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return objective

    def last(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        module.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    def whole(self, model: nn.Module) -> nn.Module | None:
        state = {}
        for name, tensor in model.state_dict().items():  # one whole tensor at a time
            whole = whole_tensor(tensor)
            if self.is_main:
                state[name] = whole.cpu()
        if not self.is_main:
            return None
        name = next(name for name, part in self._wrapped.named_modules() if part is model)
        copy = deepcopy(self._skeleton.get_submodule(name))
        copy.load_state_dict(state, assign=True)
        return copy.train(model.training)


def join(parallel: str | None = None, device: str | None = None) -> World:
    """This process and, under torchrun, the others.

    Args:
        parallel: "ddp" or "fsdp". `None`: "ddp" if torchrun has started several processes.
        device: "cpu", "cuda" and so on. `None`: this process's GPU if there is one, else the CPU.

    Raises:
        ValueError: no such way of sharing the work, or no torchrun; a device that is not there.
    """
    worlds: dict[str, Callable[[torch.device], World]] = {"ddp": _ManyProcesses, "fsdp": _Shards}
    if parallel is not None and parallel not in worlds:
        raise ValueError(f"parallel={parallel!r}: one of {', '.join(worlds)}")
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if not started or (parallel is None and os.environ["WORLD_SIZE"] == "1"):
        if parallel is not None:
            raise ValueError(
                f"parallel={parallel!r} is for several processes: start them with torchrun, as in "
                f"torchrun --nproc-per-node 2 -m jumok train …"
            )
        return World(_device(device, 0))
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
    return worlds[parallel or "ddp"](place)


def clip(parameters: Iterable[Tensor], most: float) -> float:
    """Scale gradients down so that their norm, over all parameters and shards, is at most that.

    Args:
        parameters: those of the model, whole or sharded.
        most: the norm, in the units of the gradients.

    Returns:
        The norm before.
    """
    norm = nn.utils.clip_grad_norm_(parameters, most)
    return float(whole_tensor(norm))


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside those that DDP or `torch.compile` have put around it."""
    from torch.nn.parallel import DistributedDataParallel

    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def _device(name: str | None, local_rank: int) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r}: torch knows no device of that name") from None
    if device.type != "cuda":
        return device
    number = local_rank if device.index is None else device.index
    if number >= torch.cuda.device_count():
        raise MissingDeviceError(
            f"device={name!r}: process {local_rank} of this machine needs GPU {number}, and there "
            f"are {torch.cuda.device_count()}"
        )
    return torch.device("cuda", number)


def _added(bucket: Any) -> torch.futures.Future[Tensor]:
    """Gradients of all processes added, where DDP would take their mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    added: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return added


def _without_numbers(module: nn.Module) -> nn.Module:
    """A copy whose tensors have shapes alone."""
    memory: dict[int, Any] = {}
    for parameter in module.parameters():
        shape = parameter.detach().to("meta")
        memory[id(parameter)] = nn.Parameter(shape, requires_grad=parameter.requires_grad)
    return deepcopy(module, memory)


def _shared(value: Any, group: dist.ProcessGroup | None) -> Any:
    values = [value]
    dist.broadcast_object_list(values, src=0, group=group)
    return values[0]


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor of which this process may hold a part; all of it."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
