"""The loss on held-out groups during training, from a run's checkpoints: the same groups and the same loss for every method.

The methods train on losses that cannot be compared, over groups or over batches of different sizes. This one can, and it needs
no look at training records.

How long a step of each method takes, measured in turns in one process.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from dpfed.artifacts.directory import RunDirectory
from dpfed.bounding.engines import LossOfViews
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.evaluation.suite import subset
from dpfed.objectives import loss_of
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve
from dpfed.training.checkpoint import Checkpoints

RECORDS, GROUP = 512, 16


def relative_losses(run: RunDirectory) -> list[tuple[int, float]]:
    """(steps, loss over the loss before training) at every checkpoint of a run, oldest first."""
    config = run.config()
    parts = assemble(resolve(config))
    indices = subset(parts.store, parts.store.split(config.evaluation.split), RECORDS)
    if len(indices) < GROUP:
        raise UserError(
            f"the loss on held-out records takes {GROUP} of them at least, and {parts.store.name} has {len(indices)}."
        )
    indices = indices[: len(indices) // GROUP * GROUP].reshape(-1, GROUP)
    # Held-out records and a loss that is not released: the views need to be the same every time, not secret.
    batch = parts.view_maker()(indices.reshape(-1), Randomness.from_seed(0), 0, parts.device)
    loss, losses = loss_of(config.objective), []
    for path in Checkpoints(run.checkpoints, config.training.keep).paths():
        parts.load_weights(path)
        mean = _mean(LossOfViews(parts.model, "fp32", loss), batch, indices)
        losses.append((int(path.stem.removeprefix("step-")), mean))
    return [(step, mean / losses[0][1]) for step, mean in losses]


@torch.no_grad()
def _mean(loss: LossOfViews, batch: dict[str, torch.Tensor], indices: np.ndarray) -> float:
    loss.eval()
    present = torch.ones(GROUP, dtype=torch.bool, device=next(iter(batch.values())).device)
    slices = (slice(GROUP * group, GROUP * (group + 1)) for group in range(len(indices)))
    groups = ({name: view[part] for name, view in batch.items()} for part in slices)
    return sum(loss(views, present).item() for views in groups) / indices.size


ROUNDS = 3


def seconds_per_step(configs: dict[str, Config]) -> dict[str, float]:
    """Seconds of a step's bounded sum, which is what methods differ in: the least of some rounds.

    Nothing is released. How long a step takes may depend on its records, so these must be public.

    Args:
        configs: of the runs, by a name for each.

    Returns:
        Seconds of processor time on a CPU, where other work on the machine counts for little; of wall time elsewhere.
    """
    workers = {}
    for name, config in configs.items():
        randomness = Randomness.fresh()
        parts = assemble(resolve(config), randomness)
        workers[name] = (parts.worker(randomness.for_owners()), parts.device)
    best = dict.fromkeys(configs, math.inf)
    for step in range(ROUNDS):
        for name, (worker, device) in workers.items():
            clock = time.process_time if device.type == "cpu" else time.perf_counter
            started = clock()
            worker.bounded_sum(step).values.sum().item()  # waits for the device
            best[name] = min(best[name], clock() - started)
    return best
