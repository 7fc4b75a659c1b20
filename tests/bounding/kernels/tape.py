"""A CUDA graph's stand-in: keeps operations with the tensors and numbers that they had, and repeats these and nothing else."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from dpfed.bounding import kernels

KERNELS = ("outer_products._add_up", "grouped_convolution._add_up", "group_norm._normalise", "group_norm._pull_back")
KERNELS += ("group_sums._square", "group_sums._weigh")


def tensors(value):
    return [part for part in tree_leaves(value) if isinstance(part, torch.Tensor)]


class Tape(TorchDispatchMode):
    """A `Recording` without a GPU: no line of Python is run again, and what was no tensor stays what it was."""

    current = None

    def __init__(self):
        super().__init__()
        self.operations, self.repetitions = [], 0

    def record(self, work):
        work()
        Tape.current = self
        try:
            with self:
                return work()
        finally:
            Tape.current = None

    def repeat(self):
        self.repetitions += 1
        with torch.no_grad():
            for operation in self.operations:
                operation()

    def keep(self, func, args, kwargs, results):
        places = {part.untyped_storage().data_ptr() for part in tensors((args, kwargs))}
        # Views, and what was written in place, need no copy: the memory is the same.
        fresh = [
            (number, part) for number, part in enumerate(tensors(results)) if part.untyped_storage().data_ptr() not in places
        ]

        def operation():
            again = tensors(func(*args, **kwargs))
            for number, part in fresh:
                part.copy_(again[number])

        self.operations.append(operation)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        self.keep(func, args, kwargs or {}, results)
        return results


def outer_products(slopes, inputs, offsets, kernel=(1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """Group by group, by the library."""
    weight, products = inputs.new_zeros(slopes.shape[3], inputs.shape[3], *kernel), []
    moves = list(stride), list(padding), list(dilation), False, [0, 0], 1, [False, True, False]
    for first, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        g, x = (side[first:end].permute(0, 3, 1, 2).contiguous() for side in (slopes, inputs))
        sums = torch.ops.aten.convolution_backward(g, x, weight, None, *moves)[1] if end > first else weight
        products.append(sums.permute(0, 2, 3, 1).float())
    return torch.stack(products)


def normalise(images, scale, shift, groups, epsilon, relu, added=None):
    x = images.contiguous()
    out, means, inverses = torch.native_group_norm(x, scale, shift, *x.shape[:2], x[0, 0].numel(), groups, epsilon)
    out = out if added is None else out + added
    return F.relu(out) if relu else out, means, inverses


def pull_back(slopes, images, out, scale, means, inverses, relu, adds):
    wide = images.shape[1] // means.shape[1]
    g = slopes * (out > 0) if relu else slopes
    m, inverse = (value.repeat_interleave(wide, 1)[..., None, None] for value in (means, inverses))
    normal, weighted = (images - m) * inverse, g * scale[:, None, None]

    def level(values):
        return values.unflatten(1, (-1, wide)).mean((2, 3, 4)).repeat_interleave(wide, 1)[..., None, None]

    of_images = (weighted - level(weighted) - normal * level(weighted * normal)) * inverse
    return of_images, g.clone() if adds else None, torch.stack([(g * normal).sum((2, 3)), g.sum((2, 3))], dim=1)


def squares(gradients):
    return torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64).square()


def weighted_sum(gradients, factors, block, kind=torch.float32):
    weights = factors.unsqueeze(1)
    return (weights * gradients.masked_fill(weights == 0, 0.0)).to(kind).sum(0, dtype=kind)


def plain_kernels(monkeypatch):
    """Puts these in place of Triton's, whose interpreter takes minutes for a pass; a tape keeps each as one operation."""

    def taped(function):
        def launch(*given):
            with _disable_current_modes():
                results = function(*given)
            if Tape.current is not None:
                Tape.current.keep(function, given, {}, results)
            return results

        return launch

    for function in (outer_products, normalise, pull_back, squares, weighted_sum):
        monkeypatch.setattr(kernels, function.__name__, taped(function))
