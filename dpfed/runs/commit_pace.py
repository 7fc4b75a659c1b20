"""Chooses how many steps a run charges to its ledger in one write: as many as take about ten seconds.

The time of a step is estimated from a forward and backward pass on random images. The number is chosen before the first step
and holds for the whole process. If a clock in the training loop decided instead, the written files would depend on how long the
private records take to process.
"""

from __future__ import annotations

import math
import time

import torch

from dpfed.models.contract import embeddings_of
from dpfed.runs.build import Parts

_SECONDS = 10.0  # seconds of work that a crash may lose
_BESIDE = 2.0  # time of a private step relative to its bare passes: a step also makes views, clips, and sends sums
_RECORDS = 32  # records of the timed pass, if the configuration does not set bounding.pass_records


def steps_between_commits(parts: Parts) -> int:
    """Returns the largest number of steps charged in one write: ``training.commit_every``, or else an estimate.

    The number is never larger than the number of steps between two checkpoints. If no estimate can be made, such as for private
    moments, it equals the number of steps between two checkpoints.

    Args:
        parts: Parts of the run; this function does not change the model.
    """
    training, plan = parts.config.training, parts.plan
    most = training.checkpointed(plan.steps)  # every checkpoint is a commit
    if training.commit_every is not None:
        return min(training.commit_every, most)
    if plan.bounding.method.closed_form or not plan.sampling.batch:
        return most
    try:
        seconds = _BESIDE * _seconds_of_a_record(parts) * plan.sampling.batch / parts.learner.world_size
    except RuntimeError:  # such as too little memory: the run itself then tells the user what to do
        return most
    return min(most, max(1, math.floor(_SECONDS / max(seconds, 1e-6))))


def _seconds_of_a_record(parts: Parts) -> float:
    """Returns the seconds per record of a forward and backward pass over noise; only the second of two passes counts."""
    batch = parts.dummy_batch()
    records = min(parts.config.bounding.pass_records or _RECORDS, len(next(iter(batch.views.values()))))
    views = {name: view[:records] for name, view in batch.views.items()}
    model, took = parts.learner.views.trained(parts.model), 0.0
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            for _ in range(2):
                started = time.perf_counter()
                total = torch.stack([z.sum() for z in embeddings_of(model, views).values()]).sum()
                torch.autograd.grad(total, weights, allow_unused=True)[0]
                if parts.learner.device.type == "cuda":
                    torch.cuda.synchronize()
                took = time.perf_counter() - started
    finally:
        model.train(training)
    return took / records
