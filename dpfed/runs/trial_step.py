"""Tries one step on random images instead of records, and refuses captions that are all equal, before any budget is spent.

The trial checks three conditions for a step of the run: the gradient of a group reaches the weights, the weights change, and
the model still computes finite numbers after its weights have moved as far as they can in the run. A setting that fails the
trial would spend epsilon on noise alone, or end the run after a charged step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpfed.bounding.engines import GroupBatch
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.config import OptimizerConfig
from dpfed.data.record_set import RecordSet
from dpfed.data.store.index import blocks
from dpfed.errors import UserError
from dpfed.models.contract import embeddings_of
from dpfed.models.parameters import TrainableVector, exact_type
from dpfed.runs.build import Parts
from dpfed.runs.dummy_batch import one_group
from dpfed.schema.named import in_python
from dpfed.training.optimizers import Update, take_step

_LEAST_SIGNAL = 1e-6  # least norm of a gradient, as a part of the norm that the noise is made for; noise buries less
_LEAST_CHANGE = 1e-6  # least change by all steps together, as a part of the weights' norm: float32 hardly shows less


def try_step(parts: Parts) -> None:
    """Refuses a run whose steps change nothing, learn nothing or end in numbers that are not finite.

    Args:
        parts: Parts of a new run; this function leaves the weights as they were.

    Raises:
        UserError: If the trial fails; the message names the setting to change.
    """
    if parts.plan.bounding.method.closed_form:
        return
    vector = TrainableVector(parts.model)
    named = zip(vector.names, vector.parameters, strict=True)
    # Scalars are a loss's temperature and bias, and centres follow the embeddings: neither belongs to an encoder.
    if all(parameter.dim() == 0 or name.startswith("centres.") for name, parameter in named):
        raise UserError(
            f"only {' and '.join(vector.names)} would be trained, and no weight of an encoder: set adaptation.image or "
            "adaptation.text to 'lora' or 'full'. [run-frozen]"
        )
    batch = one_group(parts.dummy_batch(), parts.config)
    gradient = _gradient(parts, batch) if parts.plan.bounding.method.picks_engine else vector.zeros()
    before = vector.gather()
    try:
        _try_weights(parts, batch, gradient, before)
    finally:
        vector.assign(before)


def _gradient(parts: Parts, batch: GroupBatch) -> Tensor:
    """Returns the group's clipped gradient; refuses one that is far shorter than the norm to which the noise is scaled."""
    config, plan = parts.config, parts.plan
    model = parts.learner.views.trained(parts.model)
    engine = LoopEngine(model, config.training.precision, parts.loss)
    total = engine.zeros()
    model.train()
    with torch.random.fork_rng(devices=[]):
        norms = engine.add_clipped(batch, plan.bounding.bound, total)
    norm, bounding = float(norms.max()) if len(norms) else 0.0, plan.bounding
    if not math.isfinite(norm):
        raise UserError(
            f"the gradient of objective.name = '{config.objective.name}' is not finite on random images, and dpfed leaves "
            "such gradients out: nothing would be learnt. Choose other values in [objective], or set training.precision = "
            "'fp32'. [run-gradient]"
        )
    if norm == 0:
        raise UserError(
            "the gradient of a group of random images is zero: nothing would be learnt. Check [objective]. [run-no-gradient]"
        )
    # Norm of the clipped gradient, as a part of the largest that the noise is made for; an adaptive threshold finds its own.
    left, key = {
        "fixed": (norm / bounding.clip_norm, "clip_norm"),
        "automatic": (norm / (norm + bounding.stability), "stability"),
        "adaptive": (norm, ""),
    }[bounding.clipping]
    if plan.private and left < _LEAST_SIGNAL:
        clipped, lower = "", ""
        if key:
            clipped = f" and, after clipping with bounding.{key} = {getattr(bounding, key):g}, only {left:.1g} of the norm to "
            clipped, lower = f"{clipped}which the noise is scaled", f"lower bounding.{key}, or "
        raise UserError(
            f"the gradient of a group of random images has norm {norm:.1g}{clipped}, so nothing would be learnt: {lower}check "
            "[objective]. [run-no-signal]"
        )
    return total


def _try_weights(parts: Parts, batch: GroupBatch, gradient: Tensor, before: Tensor) -> None:
    """Takes a noisy step, and refuses a learning rate at which the run would change the weights too little or too much."""
    plan, optimizer, vector = parts.plan, parts.config.optimizer, TrainableVector(parts.model)
    generator = torch.Generator().manual_seed(0)  # nothing is released: the noise need not be secret
    noise = torch.randn(vector.numel, generator=generator).to(before) * plan.noise_std
    noisy = (gradient.to(before) + noise) / plan.divisor
    _step(parts, vector, noisy)
    change = vector.gather() - before
    moved, length = (float(torch.linalg.vector_norm(values, dtype=exact_type(values.device))) for values in (change, before))
    inertia = 1 / (1 - optimizer.momentum) if optimizer.name in ("sgd", "lars") else 1.0
    farthest = plan.steps * inertia
    if optimizer.name == "lars":  # its steps are proportional to the weights' norm, which grows with every step
        farthest *= _growth(moved / max(length, 1e-30) * inertia, plan.steps)
    if math.isfinite(moved) and moved * farthest <= _LEAST_CHANGE * length:
        raise UserError(
            f"{_rate(optimizer)} changes the weights by {moved * farthest / max(length, 1e-30):.0e} times their norm "
            f"in {plan.steps:,} steps, so nothing would be learnt: raise the learning rate. [optimizer-rate-low]"
        )
    vector.assign(before + change * min(farthest, 1e30))
    if not math.isfinite(moved) or not _all_finite(parts, batch):
        raise UserError(
            f"{_rate(optimizer)} changes the weights by {moved / max(length, 1e-30):.0e} times their norm in one step; "
            f"after {plan.steps:,} such steps the model would not compute finite numbers: lower the learning rate. "
            "[optimizer-rate-high]"
        )


def _step(parts: Parts, vector: TrainableVector, noisy: Tensor) -> None:
    """Takes a step of the run's optimizer, at its highest learning rate.

    Raises:
        UserError: If a user's own optimizer cannot step, or keeps a state that no checkpoint can hold; if a user's own schedule
            ends before the run does.
    """
    optimizer, own_optimizer = parts.config.optimizer, parts.learner.own_optimizer
    update = Update(optimizer, vector.parameters, parts.plan.steps, own_optimizer)
    name = type(update.optimizer).__name__
    try:
        take_step(update.optimizer, vector.parameters, vector.split(noisy), None if own_optimizer else optimizer.learning_rate)
    except Exception as error:
        if not own_optimizer and not optimizer.is_own:
            raise
        closure = " It needs a closure, but a private gradient is computed only once." if "closure" in str(error) else ""
        raise UserError(
            f"the optimizer {name} cannot step ({type(error).__name__}: {error}).{closure} Choose another. [optimizer-step]"
        ) from error
    try:
        update.skip(parts.plan.steps)
    except Exception as error:
        raise UserError(
            f"the schedule cannot go on for the run's {parts.plan.steps:,} steps ({type(error).__name__}: {error}): give a "
            "schedule of as many steps. [optimizer-schedule-short]"
        ) from error
    kept = [value for state in update.optimizer.state_dict()["state"].values() for value in state.values()]
    if any(not isinstance(value, Tensor | int | float | None) for value in kept):
        raise UserError(
            f"the optimizer {name} keeps state other than tensors and numbers, which a checkpoint cannot hold: choose another. "
            "[optimizer-state]"
        )


def _growth(share: float, steps: int) -> float:
    """Returns the factor by which the L2 norm of the weights grows in a number of steps.

    Each step is assumed to be orthogonal to the weights, with a norm of `share` times the weights' norm.
    """
    return math.exp(min(60.0, 0.5 * steps * math.log1p(share**2))) if math.isfinite(share) else math.inf


def _rate(optimizer: OptimizerConfig) -> str:
    if in_python(optimizer.name):
        return f"the optimizer '{optimizer.name.rpartition(':')[2]}'"
    decay = f" with weight_decay = {optimizer.weight_decay:g}" if optimizer.weight_decay else ""
    return f"optimizer.learning_rate = {optimizer.learning_rate:g}{decay} (optimizer.name = '{optimizer.name}')"


@torch.no_grad()
def _all_finite(parts: Parts, batch: GroupBatch) -> bool:
    """Returns whether the embeddings and features of a few noise images are finite numbers, and not enormous."""
    model = parts.learner.views.trained(parts.model)
    model.eval()
    outputs = list(embeddings_of(model, batch.views).values())
    if not parts.config.cached_views:
        outputs.append(parts.model.features(batch.views["image"][:, 0]))  # type: ignore[operator]
    return all(bool(z.isfinite().all()) and float(z.double().square().sum()) < 1e30 for z in outputs)


def refuse_equal_captions(store: RecordSet) -> None:
    """Refuses records whose captions are all equal, because such captions cannot distinguish images.

    Case and white space do not count.

    Raises:
        UserError: If all captions of training records are equal; the message says what to import instead.
    """
    first: str | None = None
    indices = store.split("train")
    for start, end in blocks(len(indices)):
        for captions in store.captions(indices[start:end]):
            for caption in captions:
                text = " ".join(caption.lower().split())
                first = text if first is None else first
                if text != first:
                    return
    if first is not None:
        raise UserError(
            f"all training records of {store.name} have the same caption, so captions tell no image from another: import "
            "captions that differ, or set model.kind = 'image'. [run-captions-equal]"
        )
