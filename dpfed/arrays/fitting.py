"""Two noisy sums over the rows of arrays, and heads that follow: what a run in closed form does, without a configuration.

Plan, worker, engine, coordinator, noise and ledger are those of such a run. With equal numbers and an equal key, both release
the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.arrays.records import ArrayRecords, ArrayViews
from dpfed.arrays.refusal import ArrayError
from dpfed.bounding.pair_moments import MomentsEngine
from dpfed.data.sampling import PartitionRows
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel
from dpfed.models.moment_layout import Moments, dimensions_for
from dpfed.models.moments import MomentHeads, give_heads, published_heads
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import block_length
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.method import MethodInputs, method_named
from dpfed.privacy.plan import STEPS_IN_CLOSED_FORM, PrivacyPlan
from dpfed.privacy.plan_checks import MOST_RECORDS
from dpfed.privacy.randomness import Randomness
from dpfed.runs.closed_form import moment_heads
from dpfed.training.coordinator import Coordinator
from dpfed.training.loop import train
from dpfed.training.options import OptimizerConfig
from dpfed.training.transport import InProcess
from dpfed.training.worker import Worker

METHOD = "moments"


@dataclass(frozen=True)
class Wanted:
    """What somebody asks of a fit.

    Attributes:
        epsilon: of the fit.
        delta: ``None``: 1/(N ln N).
        dimensions: k; ``None``: chosen from N and sigma.
        aligned: whether the features of a record are alike before anything is learnt.
        noise: ``gaussian`` or ``discrete``.
    """

    epsilon: float
    delta: float | None = None
    dimensions: int | None = None
    aligned: bool = False
    noise: str = "gaussian"


def plan_of(wanted: Wanted, records: ArrayRecords) -> PrivacyPlan:
    """What a fit promises, and how: the plan of a run in closed form over as many records.

    Raises:
        UserError: for numbers that cannot be a plan.
    """
    views = records.x.views
    method = method_named(METHOD)
    options = method.checked("infonce", {"dimensions": wanted.dimensions or 0, "views": views})
    inputs = MethodInputs(METHOD, options, "infonce", None, "fp32", reads_text=records.y is not None, public_records=0)
    units: dict[str, Any] = {} if records.units is None else {"unit": "user", "per_unit": MOST_RECORDS}  # all of a unit's
    return PrivacyPlan.calibrate(
        records.protected,
        records.protected,
        STEPS_IN_CLOSED_FORM,
        wanted.epsilon,
        wanted.delta,
        group_size=1,
        clip_norm=1.0,
        method_name=METHOD,
        options=method.public_parameters(inputs),
        noise_kind=wanted.noise,
        **units,
    )


class Fit:
    """One fit: its plan, and its rows as the mechanism reads them.

    A matrix with fewer columns than the heads have dimensions gets columns of zeros: otherwise the other matrix would be
    projected to as few. What noise makes of these columns is dropped.

    Args:
        wanted: what is asked for.
        records: the rows.

    Attributes:
        plan: what is promised.
        records: the rows.
        model: frozen, with nothing but heads.
        heads: of the model.
        widths: columns of X and of Y.

    Raises:
        UserError: for numbers that do not go together.
    """

    def __init__(self, wanted: Wanted, records: ArrayRecords) -> None:
        self.plan = plan_of(wanted, records)
        self.widths = tuple(rows.width for rows in (records.x, records.y) if rows is not None)
        widest, n = max(self.widths), self.plan.sampling.records
        if wanted.aligned and len(set(self.widths)) > 1:
            columns = " and ".join(f"{width:,}" for width in self.widths)
            raise ArrayError(
                f"aligned=True says that rows of X and Y are alike, and they have {columns} columns: leave it out. "
                "[arrays-aligned]"
            )
        if wanted.dimensions and wanted.dimensions > min(widest, n):
            raise ArrayError(
                f"dimensions = {wanted.dimensions} is too much for {widest:,} columns and N = {n:,}: "
                "lower it, or leave it out. [arrays-dimensions]"
            )
        k = wanted.dimensions or dimensions_for(n, self.plan.noise.multiplier, (widest,))
        padded = tuple(max(width, k) for width in self.widths)
        self.records, self._padded = records, padded
        aligned = wanted.aligned or records.y is None
        self.heads: MomentHeads = moment_heads(self.plan, padded, aligned, self.plan.noise_std)
        self.model = _bare(len(padded)).requires_grad_(False)
        give_heads(self.model, self.heads)

    @property
    def size(self) -> int:
        """Numbers of both sums."""
        return TrainableVector(self.model).numel

    def create_ledger(self, path: Path, fixed_seed: bool) -> Ledger:
        """A ledger for this fit; see `Ledger.create`."""
        return Ledger.create(path, self.plan, {"fixed_seed": fixed_seed}, block_length(self.size))

    def worker(self, randomness: Randomness) -> Worker:
        """Adds up the rows.

        Args:
            randomness: the owner's.
        """
        records = self.records
        # Nothing is drawn: every record takes part, a unit with all of its rows. So a row's place may be its key.
        places = np.arange(len(records), dtype=np.uint64)
        return Worker(
            plan=self.plan,
            model=self.model,
            engine=MomentsEngine(self.model, self.plan),
            views=ArrayViews(records, self._padded),
            indices=PartitionRows(records, places),
            keys=places,
            randomness=randomness,
            microbatch=records.together,
            units=records.units,
        )

    def run(self, ledger: Ledger, randomness: Randomness) -> dict[str, Tensor]:
        """Releases both sums, each charged before anything follows from it, and makes the heads.

        Args:
            ledger: of this fit.
            randomness: its secret.

        Returns:
            The tensors of `dpfed.models.moments.published_heads`.
        """
        coordinator = Coordinator(self.plan, self.model, OptimizerConfig(), randomness, ledger)
        transport, there = InProcess([self.worker(randomness.for_ranks())]), self._there()
        for step in range(self.plan.steps):
            train(transport, coordinator, [step])
            with torch.no_grad():
                self.heads.released.mul_(there)
        made = published_heads(self.model)
        for side, width in zip(("image", "text"), self.widths, strict=False):
            made[f"{side}.projection"] = made[f"{side}.projection"][:, :width]
        return {name: tensor.detach().cpu().contiguous() for name, tensor in made.items()}

    def _there(self) -> Tensor:
        """1 for each number of the sums that is not one of columns of zeros, which the sums hold as noise alone."""
        layout = self.heads.layout
        columns = (torch.arange(layout.dimensions) < torch.tensor(self.widths)[:, None]).double()
        across = columns[0][:, None] * columns[-1]
        own = columns[:, :, None] * columns[:, None, :]
        moments = Moments(columns, across, own)
        return torch.cat([layout.encoded(step, moments) for step in (0, 1)]).ne(0).to(self.heads.released)


def _bare(towers: int) -> nn.Module:
    """A model whose towers give what they get."""
    if towers == 1:
        return SimCLRModel(nn.Identity(), nn.Identity())
    return TwoTowerModel(nn.Identity(), nn.Identity(), nn.Identity())
