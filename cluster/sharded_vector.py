"""A model in shards, and its trainable parameters as one flat vector of which every rank holds a part.

FSDP2 cuts every parameter along its first dimension: of n rows, rank r of W holds rows r c to (r + 1) c with c = ceil(n / W),
so the last ranks may hold fewer, or none (adapters have one to three rows). A scalar, such as a learnt temperature, cannot be
cut: every rank holds it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from cluster.fsdp_internals import quiet
from dpfed.bounding import foreach
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector, exact_type

_LEAST = 1 << 16  # numbers of a block that is worth messages of its own, in every pass


def shard_model(model: nn.Module, mesh: DeviceMesh, least: int = _LEAST) -> None:
    """Cuts the parameters of a model, frozen ones included, into shards, in place.

    Blocks of layers are gathered one after the other when a pass needs them, and let go right after it. Start from a model on
    the CPU: it moves to the mesh's device block by block, and never lies there whole.

    Args:
        model: a model of docs/architecture.md, adapters included; the same values on every rank.
        mesh: all ranks, in one dimension, see ``torch.distributed.device_mesh.init_device_mesh``.
        least: numbers of a block. Smaller ones are gathered with what lies outside the blocks.

    Raises:
        UserError: if the mesh has more than one dimension.
    """
    if mesh.ndim != 1:
        raise UserError(f"a model is sharded over one dimension of ranks, but the mesh has {mesh.ndim}: make it flat.")
    scalars = {parameter for parameter in model.parameters() if parameter.dim() == 0}
    for scalar in scalars:
        scalar.data = scalar.data.to(mesh.device_type)
    for module in (*_blocks(model, least), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=scalars)
        if hasattr(
            module, "get_weight_dtype"
        ):  # open_clip reads a weight from outside its block, and adapters cannot merge shards
            register_fsdp_forward_method(module, "get_weight_dtype")
    quiet(model)


def _blocks(model: nn.Module, least: int) -> Iterator[nn.Module]:
    """What is gathered at a time: the members of the outermost lists of layers. The rest stays with the model as a whole."""
    uses = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    shared = {parameter for parameter in uses if sum(parameter is use for use in uses) > 1}

    def below(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if isinstance(module, (nn.Sequential, nn.ModuleList)):
                parameters = set(child.parameters())
                large = parameters and sum(parameter.numel() for parameter in parameters) >= least
                if large and not parameters & shared:  # a parameter has one block; one that several use is the model's
                    yield child
            else:
                yield from below(child)

    return below(model)


class ShardedVector:
    """This rank's part of the flat vector of `TrainableVector`.

    The part holds this rank's shard of every trainable parameter, one after the other, about P / W numbers, and every scalar.

    Attributes:
        whole: names, order and shapes of the trainable parameters.
        group: the ranks.

    Raises:
        UserError: if nothing is trainable.
    """

    def __init__(self, model: nn.Module) -> None:
        self.whole = TrainableVector(model)
        self.group = next(p for p in model.parameters() if isinstance(p, DTensor)).device_mesh.get_group()
        self._locals = [p.to_local() if isinstance(p, DTensor) else p for p in self.whole.parameters]

    @property
    def numel(self) -> int:
        """How many numbers this rank's part holds."""
        return sum(local.numel() for local in self._locals)

    @property
    def scalars(self) -> list[nn.Parameter]:
        """The trainable parameters that every rank holds, in order."""
        return [parameter for parameter in self.whole.parameters if not isinstance(parameter, DTensor)]

    def zeros(self) -> Tensor:
        """A flat vector of zeros, of the size of this rank's part, on the model's device and of its `exact_type`."""
        return torch.zeros(self.numel, dtype=exact_type(self.whole.device), device=self.whole.device)

    def split(self, local: Tensor) -> list[Tensor]:
        """Views into this rank's part, one per parameter, in the shapes of the shards."""
        parts = local.split([shard.numel() for shard in self._locals])
        return [part.view_as(shard) for part, shard in zip(parts, self._locals, strict=True)]

    def add_up(self, numbers: Sequence[int], fill: Callable[[int, Tensor], None], into: Tensor) -> None:
        """Adds the ranks' gradients of some parameters together, and each rank's shards of them to its part; all ranks call it.

        This rank holds the whole gradients of these parameters meanwhile, and of no others.

        Args:
            numbers: of the parameters in `whole`; none is a scalar.
            fill: adds this rank's gradient of a parameter, by its number, to float32 zeros of its shape.
            into: this rank's part, added to in place.
        """
        ranks, parts = self.group.size(), self.split(into)
        shapes = [(self._rows(cast(DTensor, self.whole.parameters[n])), *self.whole.parameters[n].shape[1:]) for n in numbers]
        lengths = [math.prod(shape) for shape in shapes]
        own = torch.empty(ranks, sum(lengths), device=into.device)
        for number, shape, place in zip(numbers, shapes, own.split(lengths, dim=1), strict=True):
            padded = own.new_zeros(ranks * shape[0], *shape[1:])
            fill(number, padded[: len(self.whole.parameters[number])])
            place.copy_(padded.view(ranks, -1))
        total = own[0]
        if ranks > 1:
            total = torch.empty_like(total)
            dist.reduce_scatter_tensor(total, own.view(-1), group=self.group)
        for number, shard in zip(numbers, total.split(lengths), strict=True):
            part = parts[number].view(-1)
            foreach.add_([part], [shard[: len(part)]])

    def gather_sum(self, local: Tensor) -> Tensor | None:
        """Puts a sum of gradients together; all ranks call it.

        One parameter at a time, so that no device needs room for all of them.

        Args:
            local: this rank's part; scalars are taken from rank 0.

        Returns:
            ``(P,)`` in the order of `TrainableVector`, on the CPU of rank 0; ``None`` on the others.
        """
        collected, first = [], self.group.rank() == 0
        for parameter, part in zip(self.whole.parameters, self.split(local), strict=True):
            if isinstance(parameter, DTensor):
                shard = self._padded(parameter, part)
                received = [torch.empty_like(shard) for _ in range(self.group.size())] if first else None
                dist.gather(shard, received, group=self.group, group_dst=0)
                if received:
                    part = torch.cat(received)[: len(parameter)]
            if first:
                collected.append(part.flatten().cpu())
        return torch.cat(collected) if collected else None

    @torch.no_grad()
    def scatter_parameters(self, full: Tensor | None) -> None:
        """Writes the parameters; all ranks call it.

        Args:
            full: ``(P,)`` float32 in the order of `TrainableVector`, on the CPU of rank 0; ignored on the others.
        """
        first = self.group.rank() == 0
        parts: Iterable[Tensor | None] = itertools.repeat(None, len(self._locals))
        if first and full is not None:
            parts = self.whole.split(full)
        for parameter, local, part in zip(self.whole.parameters, self._locals, parts, strict=True):
            if not isinstance(parameter, DTensor):
                if part is not None:
                    parameter.copy_(part)
                dist.broadcast(parameter, group=self.group, group_src=0)
                continue
            shard, rows = self._padded(parameter, local), self._rows(parameter)
            shards = None
            if part is not None:
                shards = [shard.new_zeros(shard.shape) for _ in range(self.group.size())]
                for empty, values in zip(shards, part.split(rows), strict=False):
                    empty[: len(values)] = values
            dist.scatter(shard, shards, group=self.group, group_src=0)
            local.copy_(shard[: len(local)])

    def _rows(self, parameter: DTensor) -> int:
        return -(-len(parameter) // self.group.size())

    def _padded(self, parameter: DTensor, part: Tensor) -> Tensor:
        """A shard with rows of zeros, as many rows as every rank has."""
        padded = part.new_zeros(self._rows(parameter), *parameter.shape[1:])
        padded[: len(part)] = part
        return padded
