"""Many processes that train one learner, as torchrun starts them.

Every process draws the whole batch from the same seed and keeps its share; gradients are averaged
in one exchange before the update, and batch-norm sees the shares of all. So the episodes are those
of one process, and so are the weights, up to rounding. The first process alone writes. Without
torchrun there is one process, and every function here does nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm

from onepass.signals import Interrupted

# the others wait while the first evaluates; one that has died shows at once
PATIENCE = timedelta(days=7)


def launched() -> int:
    """How many processes were started together; they are joined to train."""
    return _told("WORLD_SIZE", 1)


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    """Whether this process is the one that writes; known also before and after they are joined."""
    return _told("RANK", 0) == 0


def own_card(name: str) -> str:
    """Of several processes on a machine each takes the card of its number."""
    beside, cards = _told("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if beside == 1:
        # of several machines with one each, which want to know its number all the same
        return "cuda:0" if launched() > 1 and name == "cuda" else name
    if name != "cuda":
        raise ValueError(f"{name} is one card, and there are {beside} processes: use --device cuda")
    if beside > cards:
        raise ValueError(f"{beside} processes need a card each, and this machine has {cards}")
    return f"cuda:{_told('LOCAL_RANK', 0)}"


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """The processes that were started together.

    When they fail, the first to do so says why, and the others leave without a word.
    """
    if launched() == 1:
        yield
        return
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"many processes train on cpu or cuda, and the device is {device}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, number, processes = next(rendezvous("env://", timeout=PATIENCE))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=number, world_size=processes, timeout=PATIENCE
    )
    try:
        yield
    except Exception as error:
        said = _said_before(store)
        if isinstance(error, Interrupted):
            # nothing is under way; otherwise an exchange that hangs would hang this, too
            dist.destroy_process_group()
        elif said:
            raise SystemExit(1) from error
        raise
    dist.destroy_process_group()


def _said_before(store: Store) -> bool:
    try:
        return store.add("failed", 1) > 1
    except RuntimeError:
        # the machine that kept count is gone
        return False


@contextmanager
def machine_first() -> Iterator[None]:
    """The first process of each machine goes before the others, who find what it prepared."""
    first = _told("LOCAL_RANK", 0) == 0
    if not first:
        agreed([])
    yield
    if first:
        agreed([])


def agreed(caught: list[int]) -> list[int]:
    """The signal that any process has caught, seen by all of them at the same step."""
    if not dist.is_initialized():
        return list(caught)
    # on the host, so that a card need not be waited for
    number = torch.tensor(max(caught, default=0))
    _exchange(number, dist.ReduceOp.MAX)
    return [int(number)] if number else []


def from_first(content: bytes) -> bytes:
    """What the first process has, on all of them."""
    length = torch.tensor(len(content) if rank() == 0 else 0)
    _exchange(length)
    if rank() == 0:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    else:
        sent = torch.zeros(int(length), dtype=torch.uint8)
    _exchange(sent)
    return sent.numpy().tobytes()


def average(tensors: list[Tensor]) -> None:
    """Each becomes its mean over all processes, all of them in one exchange."""
    if not dist.is_initialized():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    _exchange(flat)
    flat /= count()
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, mean in zip(tensors, flat.split(sizes), strict=True):
        tensor.copy_(mean.view_as(tensor))


def share_statistics(learner: nn.Module) -> None:
    """Batch-norm sees the examples of all processes from here on."""
    if not dist.is_initialized():
        return
    for module in learner.modules():
        if isinstance(module, _BatchNorm):
            # the same weights and buffers under the same names, and another way forward
            module.__class__ = SharedBatchNorm


class SharedBatchNorm(_BatchNorm):
    """Batch-norm over equal shares of a batch; torch's own is for cards, and waits for them."""

    def _check_input_dim(self, input: Tensor) -> None: ...

    # exchanges are nothing to compile
    @torch.compiler.disable
    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        axes = [axis for axis in range(x.dim()) if axis != 1]
        own_var, own_mean = torch.var_mean(x, axes, correction=0)
        means, variances = _Everyones.apply(torch.stack([own_mean, own_var])).unbind(1)
        mean = means.mean(0)
        var = (variances + (means - mean).square()).mean(0)
        self._remember(mean.detach(), var.detach(), count() * x.numel() // x.shape[1])
        scale = (var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
        out = (x - mean.view(shape)) * scale.view(shape)
        out = out if self.bias is None else out + self.bias.view(shape)
        return out.to(input.dtype)

    def _remember(self, mean: Tensor, var: Tensor, examples: int) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        weight = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean += weight * (mean - self.running_mean)
        self.running_var += weight * (var * examples / (examples - 1) - self.running_var)


class _Everyones(torch.autograd.Function):
    """[...] -> [ranks, ...]: what each process has; the slope comes back from all of them."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        everyones = own.new_zeros(count(), *own.shape)
        everyones[rank()] = own
        _exchange(everyones)
        return everyones

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        _exchange(total)
        return total[rank()]


def _exchange(tensor: Tensor, how: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    """The sum over all processes, in place."""
    try:
        dist.all_reduce(tensor, how)
    except RuntimeError as error:
        if tensor.is_cuda:
            # a recording that cannot be made is dealt with where it is made
            raise
        raise ConnectionError("another process of this run has ended") from error


def _told(name: str, otherwise: int) -> int:
    """What torchrun says in the environment."""
    return int(os.environ.get(name, otherwise))
