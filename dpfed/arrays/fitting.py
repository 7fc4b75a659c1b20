"""Fits private moments to arrays: releases two noisy sums over the rows, and computes heads from them in closed form.

No configuration is needed. Plan, worker, engine, coordinator, noise and ledger are those of a run of private moments, with a
random basis or a basis of public records. If features, basis and secret key are equal, a fit and such a run release the same
bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.arrays.basis import PublicArrays, padded
from dpfed.arrays.records import ArrayRecords, ArrayViews
from dpfed.arrays.refusal import ArrayError
from dpfed.bounding.pair_moments import MomentsEngine
from dpfed.data.sampling import PartitionRows
from dpfed.errors import UserError
from dpfed.models.basis import Basis
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel
from dpfed.models.moment_heads import canonical_heads
from dpfed.models.moment_layout import Moments, dimensions_for
from dpfed.models.moments import MomentHeads, Side, give_heads
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.accounting import LEAST_NOISE
from dpfed.privacy.blocks import block_length
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.method import MethodInputs, method_named
from dpfed.privacy.plan import STEPS_IN_CLOSED_FORM, PrivacyPlan
from dpfed.privacy.plan_checks import MOST_RECORDS
from dpfed.privacy.randomness import Randomness
from dpfed.runs.closed_form import moment_heads
from dpfed.runs.resolution import pick_device
from dpfed.training.coordinator import Coordinator
from dpfed.training.loop import train
from dpfed.training.options import OptimizerConfig
from dpfed.training.transport import InProcess
from dpfed.training.worker import Worker

METHOD = "moments"
_SIDES: tuple[Side, ...] = ("image", "text")


@dataclass(frozen=True)
class Wanted:
    """The parameters of a fit.

    Attributes:
        epsilon: Epsilon of the fit's guarantee.
        delta: Delta of the guarantee; ``None``: 1/(N ln N).
        dimensions: Number of dimensions, k; ``None``: chosen from N and sigma; for X alone and for aligned features the number
            of columns, at most N.
        aligned: Whether the two features of a record are similar already, as those of a CLIP model are.
        noise: Kind of the noise, ``gaussian`` or ``discrete``.
        device: Device that computes the sums, ``auto``, ``cpu``, ``cuda`` or ``mps``.
    """

    epsilon: float
    delta: float | None = None
    dimensions: int | None = None
    aligned: bool = False
    noise: str = "gaussian"
    device: str = "auto"


def plan_of(wanted: Wanted, records: ArrayRecords, public: bool = False) -> PrivacyPlan:
    """Makes the privacy plan of a fit, which is the plan of a run of private moments with the same number of records.

    Args:
        wanted: Parameters of the fit.
        records: Rows of the fit.
        public: Whether the basis is computed from public rows.

    Raises:
        UserError: If the parameters allow no plan.
    """
    views, basis = records.x.views, "store" if public else "random"
    method = method_named(METHOD)
    options = method.checked("infonce", {"dimensions": wanted.dimensions or 0, "views": views, "basis": basis})
    inputs = MethodInputs(METHOD, options, "infonce", None, "fp32", reads_text=records.y is not None, public_records=0)
    units: dict[str, Any] = {} if records.units is None else {"unit": "user", "per_unit": MOST_RECORDS}  # no cap on a unit
    numbers = {"group_size": 1, "clip_norm": 1.0, "method_name": METHOD, "noise_kind": wanted.noise, **units}
    options, n, steps = method.public_parameters(inputs), records.protected, STEPS_IN_CLOSED_FORM
    try:
        return PrivacyPlan.calibrate(n, n, steps, wanted.epsilon, wanted.delta, options=options, **numbers)
    except UserError as error:
        if error.code != "epsilon-too-large":
            raise
        least = PrivacyPlan.calibrate(n, n, steps, delta=wanted.delta, noise_multiplier=LEAST_NOISE, options=options, **numbers)
        raise ArrayError(
            f"epsilon = {wanted.epsilon} is too large: even the smallest noise multiplier gives a smaller epsilon. Lower it to "
            f"{math.ceil(least.epsilon()) - 1} or less; scikit-learn's CCA fits without privacy. [arrays-epsilon-large]"
        ) from error


@dataclass(frozen=True)
class Shape:
    """The public inputs of the heads, in addition to the released sums.

    The heads of X and Y have the same number of dimensions. If a matrix has fewer columns than that, it is padded with columns
    of zeros, so that the other matrix need not be projected to so few dimensions. A public basis with too few rows is padded
    with rows of zeros. The noise in padded dimensions is dropped.

    Attributes:
        plan: Privacy plan of the fit.
        widths: Numbers of columns of X and of Y.
        aligned: Whether the two features of a record are similar already, as those of a CLIP model are.
        bases: Public basis of each matrix; ``None``: random bases.
    """

    plan: PrivacyPlan
    widths: tuple[int, ...]
    aligned: bool = False
    bases: Mapping[Side, Basis] | None = None

    def refuse_impossible(self) -> None:
        """Refuses parameters that contradict each other or the shapes of the matrices.

        Raises:
            ArrayError: If parameters are contradictory; the message names them.
        """
        widest, n, wanted = max(self.directions), self.plan.sampling.records, self.plan.bounding.options["dimensions"]
        kind = "columns" if self.bases is None else "directions of the basis"
        if self.aligned and len(set(self.widths)) > 1:
            columns = " and ".join(f"{width:,}" for width in self.widths)
            raise ArrayError(
                f"aligned=True needs as many columns in X as in Y, and they have {columns}: leave aligned out. [arrays-aligned]"
            )
        if wanted > min(widest, n):
            raise ArrayError(
                f"dimensions = {wanted} is too much for {widest:,} {kind} and {n:,} records (or groups): lower it to "
                f"{min(widest, n):,} or less, or leave it out. [arrays-dimensions]"
            )

    @property
    def directions(self) -> tuple[int, ...]:
        """Numbers of dimensions that X and Y can fill: their columns or, with bases, the bases' rows that are not zero."""
        if self.bases is None:
            return self.widths
        return tuple(int(basis.rows.any(1).sum()) for basis in self.bases.values())

    @property
    def padded(self) -> tuple[int, ...]:
        """Numbers of columns of X and of Y, padding included. With a public basis, the basis is padded, and not the columns."""
        if self.bases is not None:
            return self.widths
        n, sigma = self.plan.sampling.records, self.plan.noise.multiplier
        k = self.plan.bounding.options["dimensions"] or dimensions_for(n, sigma, (max(self.widths),))
        return tuple(max(width, k) for width in self.widths)

    def heads(self) -> MomentHeads:
        """Makes the heads before the first release: the buffer that will hold the released sums is all zeros."""
        aligned = self.aligned or len(self.widths) == 1  # views of an image have similar features
        most = max(self.directions)
        bases = None if self.bases is None else {side: padded(basis, most) for side, basis in self.bases.items()}
        return moment_heads(self.plan, self.padded, aligned, self.plan.noise_std, basis=bases)

    def there(self, heads: MomentHeads) -> Tensor:
        """Returns a mask over the numbers of both sums: 0 where a padded dimension makes a number pure noise, otherwise 1."""
        layout = heads.layout
        columns = (torch.arange(layout.dimensions) < torch.tensor(self.directions)[:, None]).double()
        moments = Moments(columns, columns[0][:, None] * columns[-1], columns[:, :, None] * columns[:, None, :])
        return torch.cat([layout.encoded(step, moments) for step in (0, 1)]).ne(0).to(heads.released)

    def published(self, heads: MomentHeads, components: int | None) -> dict[str, np.ndarray]:
        """Returns the tensors of ``heads.safetensors`` by name, without padding.

        Args:
            heads: Heads that hold the released sums.
            components: Number of most correlated directions to keep; ``None``: the heads are those that a run of private
                moments computes.
        """
        sides = _SIDES[: len(self.widths)]
        if components is None:
            matrices = [heads.head(side).matrix for side in sides]
        else:
            moments = heads.layout.decoded(heads.released.detach().double().cpu())
            matrices = list(canonical_heads(heads.layout, heads.noise, moments, heads.aligned, components))
        made: dict[str, Tensor] = {}
        for side, width, matrix in zip(sides, self.widths, matrices, strict=False):
            head = heads.head(side)
            made[f"{side}.projection"], made[f"{side}.centre"] = head.projection[:, :width], head.centre
            made[f"{side}.matrix"] = matrix.to(head.matrix)
            if head.basis.centre is not None:
                made[f"{side}.origin"] = head.basis.centre
        return {name: np.ascontiguousarray(tensor.detach().cpu().numpy()) for name, tensor in made.items()}


class Fit:
    """One fit: its privacy plan, its rows, and the model that holds its heads.

    Args:
        wanted: Parameters of the fit.
        records: Rows of the fit.
        basis: Basis of public rows; ``None``: a random basis.

    Attributes:
        plan: Privacy plan.
        shape: Public inputs of the heads.
        records: Rows of the fit.
        basis: Basis of public rows; ``None``: a random basis.
        model: Frozen model without layers other than the heads.
        heads: Heads of the model.

    Raises:
        UserError: If the parameters allow no plan, contradict each other or the rows, or name a device that is missing.
    """

    def __init__(self, wanted: Wanted, records: ArrayRecords, basis: PublicArrays | None = None) -> None:
        self.plan, self.records, self.basis = plan_of(wanted, records, basis is not None), records, basis
        widths = tuple(rows.width for rows in (records.x, records.y) if rows is not None)
        self.shape = Shape(self.plan, widths, wanted.aligned, None if basis is None else basis.bases)
        self.shape.refuse_impossible()
        self.heads = self.shape.heads()
        self.model = _bare(len(widths)).requires_grad_(False)
        give_heads(self.model, self.heads)
        try:
            self.model.to(pick_device(wanted.device))
        except UserError as error:
            raise ArrayError(f"{error.sentence.removeprefix('training.')} [arrays-device-missing]") from error

    @property
    def size(self) -> int:
        """Number of entries of both sums in total."""
        return TrainableVector(self.model).numel

    def create_ledger(self, path: Path, fixed_seed: bool) -> Ledger:
        """Creates the ledger of this fit; see `Ledger.create`."""
        return Ledger.create(path, self.plan, {"fixed_seed": fixed_seed}, block_length(self.size))

    def worker(self, randomness: Randomness) -> Worker:
        """Makes the worker that adds up the rows.

        Args:
            randomness: Randomness of the workers.
        """
        records = self.records
        # The steps sample nothing: every row takes part. So a row's position can serve as its key.
        places = np.arange(len(records), dtype=np.uint64)
        return Worker(
            plan=self.plan,
            model=self.model,
            engine=MomentsEngine(self.model, self.plan),
            views=ArrayViews(records, self.shape.padded),
            indices=PartitionRows(records, places),
            keys=places,
            randomness=randomness,
            microbatch=records.together,
            units=records.units,
        )

    def run(self, ledger: Ledger, randomness: Randomness) -> None:
        """Releases both noisy sums, and computes the heads from them; each sum is charged to the ledger before it is used.

        Args:
            ledger: Ledger of this fit.
            randomness: Secret randomness.
        """
        coordinator = Coordinator(self.plan, self.model, OptimizerConfig(), randomness, ledger)
        transport, there = InProcess([self.worker(randomness.for_ranks())]), self.shape.there(self.heads)
        for step in range(self.plan.steps):
            train(transport, coordinator, [step])
            with torch.no_grad():
                self.heads.released.mul_(there)


def _bare(towers: int) -> nn.Module:
    """Makes a model whose towers return their input."""
    if towers == 1:
        return SimCLRModel(nn.Identity(), nn.Identity())
    return TwoTowerModel(nn.Identity(), nn.Identity(), nn.Identity())
