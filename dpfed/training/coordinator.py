"""The coordinator: adds the noise, once, and turns the noisy sum into new parameters.

Where the data owners share the noise out among themselves (`dpfed.federation.protocol.trust`), the sum says how much it
carries, and the coordinator refuses less than the plan's instead of adding any.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.config import OptimizerConfig
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import Blocks, SumNoise
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.phase import Phase
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.curve import Curve
from dpfed.training.optimizers import build_optimizer, learning_rate
from dpfed.training.post_processing import PostProcessor, post_processors
from dpfed.training.releases import Part, Releases
from dpfed.training.update import norm_of, squares, take_step, works_on_slices

DISCARDED = "discarded"  # in the place of a digest


@dataclass(frozen=True)
class StepSummary:
    """What a step may tell: all of it follows from the noisy sum or the configuration.

    Attributes:
        step: 0 .. T - 1.
        learning_rate: of this step.
        noisy_gradient_norm: L2; ``None``: the step was discarded, and the model stayed as it was.
        phase: the figures of the phase that the step ended, where such are released.
    """

    step: int
    learning_rate: float
    noisy_gradient_norm: float | None
    phase: Phase | None = None

    @property
    def done(self) -> int:
        """Steps finished."""
        return self.step + 1

    def figures(self) -> dict[str, Any]:
        """What metrics.jsonl keeps beside step and epsilon."""
        figures: dict[str, Any] = {"learning_rate": self.learning_rate, "noisy_gradient_norm": self.noisy_gradient_norm}
        return figures if self.phase is None else {**figures, "phase": self.phase.figures()}


class Hands(Protocol):
    """Processes that hold a slice of the sum each, and do on it what the coordinator bids, when it bids it."""

    @property
    def numel(self) -> int:
        """Numbers in the coordinator's own slice of a sum."""

    def make_noisy(self, step: int, own: Tensor, private: bool, keep: bool) -> str:
        """Has everyone add the noise of its blocks, once.

        Args:
            step: training step.
            own: the coordinator's own slice; overwritten.
            private: whether there is noise.
            keep: whether the release is kept on disk, too, before this returns.

        Returns:
            The digest over all blocks.
        """

    def keep(self, step: int) -> None:
        """Has everyone keep what `make_noisy` made on disk."""

    def take_up(self, step: int, noisy: Tensor) -> None:
        """Hands out a kept release ``(size,)``, in the place of `make_noisy`."""

    def update(self, step: int, threshold: float | None) -> tuple[float, Tensor, bool]:
        """Has everyone update its slice of the parameters, and tell the others; to be called when the release is paid for.

        Returns:
            Norm of the gradient, statistics behind it, and whether all parameters are finite.
        """

    def collect_state(self) -> None:
        """Brings the optimizer's state, and averages, to the coordinator's own."""


class Coordinator:
    """Holds the model, the noise, the optimizer and the ledger.

    Where processes share the sum out among themselves (`share_out`), noise, digests, kept releases and updates are theirs to
    make, slice by slice. What is checked, paid for and allowed, and when, is decided here alike.

    Attributes:
        blocks: how the sum is cut: as the ledger says.
        noise: on the sum.
        optimizer: torch's.
        post_processors: what is done with every noisy sum beside the optimizer's step, in order.
        curve: the one of them that takes in the groups' statistics, where the plan releases any.
        can_share: whether `share_out` is possible: the sum has several blocks, and all that is done with it is done to each
            number by itself.

    Args:
        plan: the noise, the divisor and the number of steps.
        model: whose trainable parameters are updated in place.
        config: optimizer, schedule and post-processors.
        randomness: the coordinator's secret randomness.
        ledger: written before each release is used.
        releases: keeps releases until a checkpoint takes them in; without it, a resume must compute them again, exactly.
        noise_std: of each number of the noisy sum, where owners add more than the plan's.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        model: nn.Module,
        config: OptimizerConfig,
        randomness: Randomness,
        ledger: Ledger,
        releases: Releases | None = None,
        noise_std: float | None = None,
    ) -> None:
        self._plan, self._config = plan, config
        self._ledger, self._releases = ledger, releases
        ledger.require_current()
        if ledger.plan.fingerprint != plan.fingerprint:
            raise UserError(f"{ledger.path} was started for another plan: noise and accounting must follow from the same one.")
        self._vector = TrainableVector(model)
        self.blocks = Blocks(self._vector.numel + plan.statistics_count, ledger.block)
        self.noise = SumNoise(plan.noise, randomness, self.blocks, plan.fingerprint)
        self._hands: Hands | None = None
        self.optimizer = build_optimizer(config, self._vector.parameters)
        self.curve = Curve(plan, noise_std) if plan.statistics else None
        self.post_processors: list[PostProcessor] = [*filter(None, [self.curve]), *post_processors(config, model)]
        self.can_share = self.blocks.count > 1 and works_on_slices(config, model, self.post_processors)

    @property
    def threshold(self) -> float | None:
        """The norm about which the next step asks, and to which it clips where that adapts; ``None``: it does not ask."""
        return None if self.curve is None else self.curve.threshold

    def share_out(self, hands: Hands) -> None:
        """From now on, totals are of the coordinator's own slice, and others hold the rest."""
        self._hands = hands

    def settle(self) -> None:
        """Has the optimizer's state and averages all here, where others hold parts of them: before they are kept or served."""
        if self._hands is not None:
            self._hands.collect_state()

    def apply(self, step: int, total: BoundedSum) -> StepSummary:
        """One step: noise once, charge, divide by the public divisor, update.

        Args:
            step: 0 .. T - 1.
            total: the sum over all K groups; its values are overwritten.

        Returns:
            Public figures of the step.

        Raises:
            UserError: if the sum is not what the plan describes, the budget is spent, or the step was released before and
                came out differently.
        """
        return self._update(step, self._release(step, total))

    def discard(self, step: int) -> StepSummary:
        """Pays for a step that came to nothing: somebody may have seen a part of it.

        Args:
            step: 0 .. T - 1.

        Raises:
            UserError: if the budget is spent, or the step was released before.
        """
        self._ledger.charge(Release(step, DISCARDED))
        return self._skipped(step)

    def replay(self, step: int) -> StepSummary | None:
        """Takes a step again from its kept release, after an interruption; ``None`` if there is none to repeat.

        Raises:
            UserError: if the ledger lost a release that is still kept.
        """
        if self._releases is None:
            return None
        recorded = self._ledger.release_of(step)
        if recorded is not None and recorded.digest == DISCARDED:
            return self._skipped(step)
        noisy = self._releases.load(step, None if recorded is None else recorded.digest)
        if recorded is None and (latest := self._releases.latest()) is not None and latest > step:
            raise UserError(f"{self._ledger.path} has lost the line of step {step}, which was released: restore it.")
        if noisy is None:
            return None
        if recorded is None:  # a crash came between keeping and paying
            self._ledger.charge(Release(step, self.blocks.digest(noisy)))
        else:
            self._ledger.note_replay(recorded)
        noisy = noisy.to(self._vector.device)
        if self._hands is not None:
            self._hands.take_up(step, noisy)
        return self._update(step, noisy)

    def _release(self, step: int, total: BoundedSum) -> Tensor:
        """Adds the noise, keeps the result and pays, in this order, before anything is used."""
        self._check_sum(step, total)
        noisy, recorded = total.values, self._ledger.release_of(step)
        if recorded is None:
            self._ledger.check_budget(step)
        add = self._plan.private and not total.noise_std
        release, keep = self._made_noisy(step, noisy, add, keep=recorded is None)
        if recorded is not None and recorded != release:
            raise UserError(
                f"step {step} was released before and comes out differently now (another device, engine or number of cores): a "
                "second release of the same sampled records would cost more than a step. Resume where the run was started."
            )
        keep()
        if recorded is None:
            self._ledger.charge(release)
        else:
            self._ledger.note_replay(release)
        return noisy

    def _made_noisy(self, step: int, noisy: Tensor, add: bool, keep: bool) -> tuple[Release, Callable[[], None]]:
        """Adds the noise in place; returns what then identifies the release, and what keeps it, unless that is done.

        Processes that share the sum keep what they make at once where `keep` says so: that spares a message to and fro.
        """
        if self._hands is not None:
            release = Release(step, self._hands.make_noisy(step, noisy, add, keep))
            return release, (lambda: None) if keep else functools.partial(self._hands.keep, step)
        if add:
            self.noise.add_(noisy, step)
        digests = self.blocks.digests(noisy)
        release = Release(step, self.blocks.joined(digests))
        return release, functools.partial(self._keep, release, noisy, digests)

    def _keep(self, release: Release, noisy: Tensor, digests: list[str]) -> None:
        if self._releases is None:
            return
        if self.blocks.count == 1:
            self._releases.save(release, noisy)
        else:
            part = Part(release.step, release.digest, 0, self.blocks.count, self.blocks)
            self._releases.save_part(part, noisy, digests)

    def _check_sum(self, step: int, total: BoundedSum) -> None:
        plan, size = self._plan, self.blocks.size if self._hands is None else self._hands.numel
        if not total.sensitivity <= plan.sensitivity or total.groups != plan.groups or total.values.numel() != size:
            raise UserError(
                f"step {step}: expected a sum over {plan.groups} groups and {size} numbers with sensitivity "
                f"{plan.sensitivity:g}, got {total.groups}, {total.values.numel()} and {total.sensitivity:g}."
            )
        # Written so that NaN and infinity are refused: with either, no noise would be added here.
        if total.noise_std != 0 and not plan.noise_std * (1 - 1e-9) <= total.noise_std < math.inf:
            raise UserError(
                f"step {step}: the owners' noise has standard deviation {total.noise_std:g}, and the plan's is "
                f"{plan.noise_std:g}: expected as much or more, and a finite number. The sum was not used."
            )
        # Processes that share a sum check their slices themselves, all at the same time, before they hash them.
        if self._hands is None and not torch.isfinite(total.values).all():
            raise UserError(f"step {step}: an owner sent a sum that is not finite; it was not used.")

    def _update(self, step: int, noisy: Tensor) -> StepSummary:
        rate = learning_rate(self._config, step, self._plan.steps)
        if self._hands is not None:
            norm, statistics, finite = self._hands.update(step, self.threshold)
            self._require_finite(step, finite)
            return StepSummary(step, rate, norm, self._told(step, statistics))
        gradient, statistics = noisy.split([self._vector.numel, self._plan.statistics_count])
        gradient = gradient.div_(self._plan.divisor)
        norm = gradient.norm().item() if self.blocks.length is None else norm_of(squares(gradient, self.blocks.length))
        for processor in self.post_processors:
            gradient = processor.gradient(step, gradient)
        take_step(self.optimizer, self._vector.parameters, self._vector.split(gradient), rate)
        self._require_finite(step, all(bool(torch.isfinite(parameter).all()) for parameter in self._vector.parameters))
        for processor in self.post_processors:
            processor.updated(step)
        return StepSummary(step, rate, norm, self._told(step, statistics))

    def _skipped(self, step: int) -> StepSummary:
        return StepSummary(step, learning_rate(self._config, step, self._plan.steps), None, self._told(step, None))

    def _told(self, step: int, statistics: Tensor | None) -> Phase | None:
        """Takes in the statistics behind a noisy gradient."""
        return None if self.curve is None else self.curve.take(step, statistics)

    def _require_finite(self, step: int, finite: bool) -> None:
        # A function of the noisy sum only, so stopping here tells nothing more.
        if not finite:
            raise UserError(
                f"step {step}: the parameters are no longer finite. Lower optimizer.learning_rate "
                f"(now {self._config.learning_rate:g}) or use a warm-up."
            )
