"""Runs a copy of a model on random groups, to find which records an embedding depends on."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.models.contract import embeddings_of

Views = dict[str, Tensor]

_MOVED = 0.1  # move of each trained weight, relative to the tensor's root mean square; absolute if a tensor is all zero
_EXACT = 1e-9  # tolerance relative to the largest value: far above rounding in float64, far below what float32 can show


class Probe:
    """A copy of a model in training mode. With it, `dpfed.models.validation` checks that no embedding depends on other records.

    Layers that mix a group on purpose (`dpfed.models.norm`) take their statistics only from their public anchors.

    Attributes:
        model: The copy.
        draws: Whether a forward pass has drawn random numbers.

    Args:
        model: Model to copy. Neither the model nor any random state of the process changes.
        dtype: Floating-point type of the computation; default: the model's own.

    Raises:
        UserError: If the model cannot be copied.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        self._dtype, self.draws = dtype, False
        try:
            self.model = copy.deepcopy(model)
        except Exception as error:  # the attributes of a user's model can raise anything
            raise UserError(
                f"{type(model).__name__} cannot be copied ({error}), but dpfed checks a copy of it: if it keeps tensors of a "
                "forward pass in its attributes, remove them. [probe-no-copy]"
            ) from error
        if dtype is not None:
            self.model.to(dtype)
        self.model.train()
        for module in self.model.modules():
            if getattr(module, "mixes_one_group", False):
                module.eval()

    def move_weights(self) -> None:
        """Adds a little noise, the same in every call, to all trainable weights. This opens gates that start at zero."""
        weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for tensor in weights:
                size = tensor.double().square().mean().sqrt() if tensor.numel() else torch.zeros(())
                noise = torch.randn(tensor.shape, generator=generator).to(tensor)
                tensor.add_(noise * (_MOVED * size if size > 0 else _MOVED))

    @contextlib.contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Puts the copy into evaluation mode while the context is open."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training

    def embed(self, views: Views, seed: int = 0) -> Views:
        """Computes the embeddings of views; the same seed gives dropout the same masks.

        Raises:
            UserError: If the model breaks the contract (`dpfed.models.contract`).
        """
        with torch.no_grad(), _seeded(views, seed):
            before = _random_state()
            embeddings = embeddings_of(self.model, self._own(views))
            self.draws = self.draws or before != _random_state()
            return embeddings

    def leaning(self, views: Views) -> tuple[int, int] | None:
        """Finds two records where the derivative of the first's embeddings with respect to the second's image is not zero.

        If an embedding does not depend on an image, this derivative is exactly zero, however the rest is rounded.

        Returns:
            The indices of the two records in the group; ``None``: there are no such records.
        """
        records = len(views["image"])
        views = self._own(views)
        leaf = views["image"].requires_grad_()
        with torch.enable_grad(), _seeded(views, 0):
            embeddings = embeddings_of(self.model, {**views, "image": leaf.clone()})  # a model may write into its views
            for record in range(records):
                # A random weighted sum, because a plain sum after a LayerNorm is constant.
                parts = [(z[record] * torch.randn_like(z[record])).sum() for z in embeddings.values() if z.requires_grad]
                if not parts:
                    return None
                (slopes,) = torch.autograd.grad(sum(parts[1:], parts[0]), leaf, retain_graph=True, allow_unused=True)
                for other in range(records):
                    # NaN comes from zero times infinity in the other record's part, so NaN counts as zero.
                    if slopes is not None and other != record and slopes[other].nan_to_num(0.0, 1.0, 1.0).any():
                        return record, other
        return None

    def activations(self, views: Views, seed: int = 0) -> list[tuple[str, Tensor]]:
        """Returns the name and the output of each submodule whose output is a tensor, in the order in which they finished.

        So inner modules precede the modules that contain them.
        """
        outputs: list[tuple[str, Tensor]] = []

        def note(path: str, module: nn.Module, _: object, output: object) -> None:
            if isinstance(output, Tensor):
                outputs.append((f"{type(module).__name__} at '{path}'", output.clone()))

        modules = [(path, module) for path, module in self.model.named_modules() if path]
        hooks = [module.register_forward_hook(functools.partial(note, path)) for path, module in modules]
        try:
            self.embed(views, seed)
            return outputs
        finally:
            for hook in hooks:
                hook.remove()

    def _own(self, views: Views) -> Views:
        floating = {name: view.to(self._dtype or view.dtype) for name, view in views.items() if view.is_floating_point()}
        return {name: floating.get(name, view).clone() for name, view in views.items()}


def same(first: Views, second: Views) -> bool:
    """Returns whether two passes gave the same embeddings, bit for bit; NaN equals NaN."""
    return all(bool(((first[name] == second[name]) | (first[name].isnan() & second[name].isnan())).all()) for name in first)


def close(first: Views, second: Views) -> bool:
    """Returns whether two passes in float64 differ by rounding only."""
    return all(_close(first[name], second[name], _EXACT) for name in first)


def nearly(first: Views, second: Views) -> bool:
    """Returns whether two passes in float32, with batches of different sizes, differ by rounding only."""
    return all(_close(first[name], second[name], 1e-5) for name in first)


def _close(first: Tensor, second: Tensor, part: float) -> bool:
    largest = first.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if first.numel() else 0.0
    return torch.allclose(first.double(), second.double(), rtol=part, atol=part * max(largest, 1e-30), equal_nan=True)


@contextlib.contextmanager
def _seeded(views: Views, seed: int) -> Iterator[None]:
    """Seeds torch, NumPy and Python while the context is open, and restores their random states afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = {tensor.device for tensor in views.values() if tensor.is_cuda}
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def _random_state() -> tuple[object, ...]:
    of_cuda = [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else []
    of_numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return torch.random.get_rng_state().numpy().tobytes(), of_cuda, random.getstate(), str(of_numpy)
