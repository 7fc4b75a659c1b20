"""What dpfed takes from FSDP2 beyond its documented API: all of it is here, and last checked with torch 2.15.

`whole_parameters` finds what layers read in place of sharded parameters. It needs:

- that a gathered parameter is the same object in every pass, and that a tensor which shares its storage has the values again
  in the backward pass of the block, without a word of autograd about a changed version.

FSDP2 adds the ranks' gradients together while they are computed, and gives nobody a block's gradient before. `BlockGradient`
stands at the one place where it is whole. It needs:

- the type `ReduceScatter`, which ``FSDPModule.set_custom_reduce_scatter`` expects, and which has no public name.
- that FSDP2 calls it once for each block and backward pass, with the block's whole gradient padded by zeros, and adds what it
  puts out to the gradients that are there.
- with one rank, that the hook of ``set_all_reduce_hook`` gets the gradient itself, and may change it.
- the words of a warning, which `quiet` leaves out.

On an upgrade: run ``tests/cluster/test_fsdp_internals.py`` and ``tests/cluster/test_parameter_sharding.py``, whose oracle is
plain autograd. Read ``foreach_reduce`` in ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``. Then change `CHECKED`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dpfed.errors import UserError

CHECKED = "2.15"  # the last version of torch that all this was seen to hold for

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
except ImportError as error:
    raise UserError(
        f"torch {torch.__version__} is installed, and its FSDP2 lacks something that dpfed takes from that of torch {CHECKED} "
        f"({error.name}): pip install 'torch~={CHECKED}.0', or set training.sharding = 'none'."
    ) from error


class BlockGradient(ReduceScatter):
    """One block's gradient on this rank, at the one place where it is whole: before it is added to the other ranks'.

    Args:
        module: the block.
        ranks: how many share it.

    Attributes:
        squares: sum of the squares of what was measured, a float64 scalar; ``None`` where there was no gradient.
    """

    def __init__(self, module: FSDPModule, ranks: int) -> None:
        self.squares: Tensor | None = None
        self._factor: Tensor | None = None
        module.set_custom_reduce_scatter(self)
        # A sum over ranks, not their mean, and nothing divided beforehand.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if ranks == 1:  # then nothing is reduced, and FSDP2 offers the gradient here only
            module.set_all_reduce_hook(self._pass)

    def measure(self) -> None:
        """The next backward pass only measures."""
        self.squares = self._factor = None

    def release(self, factor: Tensor) -> None:
        """The next backward pass adds the gradient, multiplied by a scalar factor in [0, 1], to the other ranks'."""
        self._factor = factor

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `ReduceScatter`. FSDP2 fills uneven shards up with zeros itself: padding does not count in a norm."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> dist.Work | None:
        """See `ReduceScatter`."""
        self._pass(input_tensor)
        if self._factor is None:
            return None
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=dist.ReduceOp.SUM, group=group, async_op=async_op)

    def _pass(self, gradient: Tensor) -> None:
        """Measures a gradient, or scales it in place."""
        if self._factor is None:
            if self.squares is not None:
                raise RuntimeError(
                    "a block of this model got its gradient in several parts, and cannot be clipped while it is sharded: "
                    "train it without sharding, or let a forward pass call each block once."
                )
            self.squares = squares(gradient)
            return
        if self.squares is None:
            raise RuntimeError("a block of this model got a gradient only after its norm was taken: train it without sharding.")
        gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # a group that is not finite has factor 0, and 0 * inf is not 0
        again = squares(gradient)
        shorter = torch.where(again > self.squares, (self.squares / again).sqrt(), 1.0)
        gradient.mul_((self._factor * shorter).to(gradient.dtype))


def whole_parameters(model: nn.Module, names: Sequence[str]) -> list[dict[int, Tensor]]:
    """What layers read in place of sharded parameters; all ranks call it, and gather each block once.

    Args:
        model: sharded.
        names: of parameters.

    Returns:
        For each block that has any of them, their numbers among the names, and the tensors.
    """
    numbers, blocks = {name: number for number, name in enumerate(names)}, list[dict[int, Tensor]]()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            seen = {numbers[name]: p for name, p in model.named_parameters() if name in numbers and not isinstance(p, DTensor)}
            module.reshard()
            blocks.append({number: p for number, p in seen.items() if p.dim()})  # scalars are never sharded
    return [block for block in blocks if block]


def squares(gradient: Tensor) -> Tensor:
    """The sum of a gradient's squares, a float64 scalar."""
    return torch.linalg.vector_norm(gradient, dtype=torch.float64).square()


def quiet(model: nn.Module) -> None:
    """Leaves out FSDP2's warning that what a model returns must not be changed in place; engines do not."""
    warnings.filterwarnings("ignore", rf"FSDP2-wrapped module \({type(model).__name__}\) returned a view")
