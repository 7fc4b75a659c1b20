"""The clipped sum by dpfed, by plain torch.func and by Opacus, and the gradient without privacy.

Each is a function of a problem and of how much it takes at a time; it returns a function that computes the flat sum ``(P,)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.peers.problem import TEMPERATURE, Problem, fixed_embeddings, to_fixed
from dpfed.bounding import foreach
from dpfed.bounding.engines import build_engine
from dpfed.models.parameters import TrainableVector

Step = Callable[[], Tensor]


def ours(problem: Problem, engine_name: str) -> Step:
    """dpfed's, by one of its engines, which says how much it takes at a time."""
    batch = problem.group_batch()
    engine = build_engine(engine_name, problem.model(), "fp32", problem.loss(), problem.group)

    def step() -> Tensor:
        into = engine.zeros()
        engine.add_clipped(batch, problem.clip_norm, into)
        return into

    return step


def without_privacy(problem: Problem, at_once: int) -> Step:
    """The gradient of the same losses, unclipped, so many records at a time."""
    model, groups, loss = problem.model(), problem.groups(), problem.loss()
    vector, present = TrainableVector(model), torch.ones(problem.group, dtype=torch.bool)
    of_groups = vmap(lambda z: loss({"image": z}, present, model.temperature, None))

    def step() -> Tensor:
        total = vector.zeros()
        parts = vector.split(total)
        for part in groups.split(max(1, at_once // problem.group)):
            embeddings = model({"image": part.flatten(0, 1)})["image"]
            losses = of_groups(embeddings.view(*part.shape[:2], *embeddings.shape[1:]))
            foreach.add_(parts, torch.autograd.grad(losses.sum(), vector.parameters))
        return total

    return step


def torch_func(problem: Problem, at_once: int) -> Step:
    """``vmap(grad)`` over groups, as its documentation shows it, so many groups at a time."""
    model, groups, loss = problem.model(), problem.groups(), problem.loss()
    vector, present = TrainableVector(model), torch.ones(problem.group, dtype=torch.bool)
    trainable = dict(zip(vector.names, [parameter.detach() for parameter in vector.parameters], strict=True))

    def of_group(trainable: dict[str, Tensor], images: Tensor) -> Tensor:
        embeddings = functional_call(model, trainable, ({"image": images},))
        return loss(embeddings, present, model.temperature, None)

    gradients_of = vmap(grad(of_group), in_dims=(None, 0))

    def step() -> Tensor:
        total = vector.zeros()
        for part in groups.split(at_once):
            gradients = torch.cat([gradient.flatten(1) for gradient in gradients_of(trainable, part).values()], dim=1)
            factors = (problem.clip_norm / gradients.norm(dim=1)).clamp(max=1.0)
            total += factors @ gradients
        return total

    return step


class _OfOpacus:
    """What both ways of Opacus' share: the model without buffers, and the loss of each record by itself."""

    def __init__(self, problem: Problem, at_once: int) -> None:
        if problem.group != 1:
            raise ValueError("Opacus clips the gradients of records, not of groups")
        model = problem.model()
        self.bare = nn.Sequential(model.encoder, model.head)
        self.images, self.at_once = problem.images()[:, 0], at_once
        self.fixed = fixed_embeddings()

    def losses(self, module: nn.Module, images: Tensor) -> Tensor:
        """``(n,)``."""
        return to_fixed(nn.functional.normalize(module(images), dim=1), self.fixed, TEMPERATURE)

    def sum_of(self, optimizer: Any, backward: Callable[[Tensor], None]) -> Tensor:
        """The sum that Opacus would add its noise to, so many records at a time ("virtual steps")."""
        for part in self.images.split(self.at_once):
            backward(part)
            optimizer.signal_skip_step(True)
            optimizer.step()
            optimizer.zero_grad()
        total = torch.cat([parameter.summed_grad.flatten() for parameter in optimizer.params])
        for parameter in optimizer.params:
            parameter.summed_grad = None
        return total.double()


def opacus_hooks(problem: Problem, at_once: int) -> Step:
    """Opacus' hooks, which write down every record's gradient."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    common = _OfOpacus(problem, at_once)
    module = GradSampleModule(common.bare, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), 0.0),
        noise_multiplier=0.0,
        max_grad_norm=problem.clip_norm,
        expected_batch_size=1,
        loss_reduction="sum",
    )

    return lambda: common.sum_of(optimizer, lambda part: common.losses(module, part).sum().backward())


def opacus_ghost(problem: Problem, at_once: int) -> Step:
    """Opacus' ghost clipping: norms in one backward pass, the weighted sum in another."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    common = _OfOpacus(problem, at_once)
    module = GradSampleModuleFastGradientClipping(
        common.bare, loss_reduction="sum", max_grad_norm=problem.clip_norm, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), 0.0),
        noise_multiplier=0.0,
        max_grad_norm=problem.clip_norm,
        expected_batch_size=1,
        loss_reduction="sum",
    )

    def backward(part: Tensor) -> None:
        DPTensorFastGradientClipping(module, optimizer, common.losses(module, part), "sum").backward()

    return lambda: common.sum_of(optimizer, backward)
