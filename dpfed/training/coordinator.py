"""The coordinator: adds the noise, once, and turns the noisy sum into new parameters.

Nothing that depends on a release may leave the process before the release is charged (docs/guarantee.md, Output commit), and
`commit` makes that so. Where nobody outside sees single steps, it charges all steps since the last one together (`in_groups`).
Otherwise a release is kept, and paid for, beside the computation of the next sum, and `commit` waits for that.

Where the data owners share the noise out among themselves (`dpfed.protocol.trust`), the sum says how much it
carries, and the coordinator refuses less than the plan's instead of adding any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor, nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.callbacks import StepSummary
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.blocks import Blocks, SumNoise, on_host
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.metrics_window import MetricsWindow
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.universal_hash import UniversalHash
from dpfed.training.group import Group
from dpfed.training.optimizers import SETTING, OwnOptimizer, Update
from dpfed.training.options import OptimizerConfig
from dpfed.training.planned_sum import all_finite, require_planned
from dpfed.training.post_processing import PostProcessor, post_processors
from dpfed.training.private_metrics import PrivateMetrics
from dpfed.training.releases import Releases
from dpfed.training.undisturbed import undisturbed

DISCARDED = "discarded"  # in the place of a digest


class Coordinator:
    """Holds the model, the noise, the optimizer and the ledger.

    Attributes:
        blocks: how the sum is cut: as the ledger says.
        noise: on the sum.
        update: the optimizer and its learning rates.
        optimizer: torch's.
        post_processors: what is done with every noisy sum beside the optimizer's step, in order.
        private_metrics: the one of them that takes in the groups' statistics, where the plan releases any.
        ahead: whether to update while the release is being kept and charged; whoever sets it calls `commit` before anything
            that depends on a release leaves the process, as `dpfed.training.loop.train` does.

    Args:
        plan: the noise, the divisor and the number of steps.
        model: whose trainable parameters are updated in place.
        config: optimizer, schedule and post-processors.
        randomness: the coordinator's secret randomness.
        ledger: written before anything that depends on a release leaves the process.
        releases: keeps releases until a checkpoint takes them in; without it, a resume must compute them again, exactly.
        noise_std: the standard deviation of the noise that the owners added, if it exceeds the plan's; ``None``: the plan's.
        own_optimizer: in the place of the one that `config` names.
        manual: see `Update`.
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
        own_optimizer: OwnOptimizer | None = None,
        manual: bool = False,
    ) -> None:
        config = SETTING if plan.bounding.method.closed_form else config
        self._plan, self._config = plan, config
        self._ledger, self._releases = ledger, releases
        ledger.require_current()
        if ledger.plan.fingerprint != plan.fingerprint:
            raise UserError(f"{ledger.path} is another plan's: noise and accounting must share one. [training-other-plan]")
        self._vector = TrainableVector(model)
        hashed = UniversalHash(randomness) if ledger.universal else None
        self.blocks = Blocks(self._vector.numel + plan.statistics_count, ledger.block, hashed)
        self.noise = SumNoise(plan.noise_of(), randomness, self.blocks, plan.fingerprint)
        self.update = Update(config, self._vector.parameters, plan.steps, own_optimizer, manual)
        self.optimizer = self.update.optimizer
        self.private_metrics = PrivateMetrics(plan, noise_std) if plan.statistics else None
        self.post_processors: list[PostProcessor] = [*filter(None, [self.private_metrics]), *post_processors(config, model)]
        self.ahead = False
        self._group: Group | None = None
        self._told_before: dict[int, StepSummary] = {}
        self._pool = ThreadPoolExecutor(1, "commit")
        self._committing: Future[None] | None = None

    @property
    def threshold(self) -> float | None:
        """How many groups of the next step exceed this norm is counted, and with adaptive clipping it is also the clip norm;
        ``None``: nothing is counted."""
        return None if self.private_metrics is None else self.private_metrics.threshold

    def in_groups(self, group: Group, told: Iterable[StepSummary] = ()) -> None:
        """From now on keeps no releases, and charges all steps since the last commit together.

        Args:
            group: the first one, empty.
            told: steps that are charged, and whose outcome the model has, but which callbacks may not have seen: `replay` gives
                them.
        """
        self.commit()
        self.ahead, self._group = True, group
        self._told_before = {summary.step: summary for summary in told}

    @property
    def owes(self) -> bool:
        """Whether steps of this group are not charged yet."""
        return self._group is not None and (self._committing is not None or bool(self._group.releases))

    @property
    def is_full(self) -> bool:
        """Whether a group of steps is to be charged now, whoever looks at them or not."""
        return self._group is not None and self._group.is_full

    def commit(self) -> None:
        """Returns when all releases are charged, and what a resume needs is on disk. If it failed, further calls fail, too.

        Raises:
            OSError: if something could not be kept or charged.
            UserError: if the budget is spent.
        """
        self._wait()
        if self._group is not None:
            self._group.charge(self._ledger)

    def _wait(self) -> None:
        """For the thread that has the last release."""
        if self._committing is not None:
            self._committing.result()
            self._committing = None

    def apply(self, step: int, total: BoundedSum) -> StepSummary:
        """One step: noise once, keep, charge, divide by the public divisor, update.

        Args:
            step: 0 .. T - 1.
            total: the sum over all K groups.

        Returns:
            Public figures of the step.

        Raises:
            UserError: if the sum is not what the plan describes, the budget is spent, or the step was released before and
                came out differently.
        """
        if self._group is None:
            noisy = self.release(step, total)
            if not self.ahead:
                self.commit()
            return self._update(step, noisy)
        with undisturbed():  # else no state is left that can be kept
            noisy = self.release(step, total)
            summary = self._update(step, noisy)
            self._group.whole = True
        return summary

    def discard(self, step: int) -> StepSummary:
        """Charges a step that was discarded: somebody may have seen a part of it.

        Args:
            step: 0 .. T - 1.

        Raises:
            UserError: if the budget is spent, or the step was released before.
        """
        self.commit()
        self._ledger.charge(Release(step, DISCARDED))
        return self._skipped(step)

    def replay(self, step: int) -> StepSummary | None:
        """Takes a step again from its kept release, after an interruption; ``None`` if there is none to repeat.

        Raises:
            UserError: if the ledger lost a release that is still kept.
        """
        if (told := self._told_before.pop(step, None)) is not None:
            return told
        if self._releases is None or self._committing is not None:  # this process made the last release: no later one is kept
            return None
        recorded = self._ledger.release_of(step)
        if recorded is not None and recorded.digest == DISCARDED:
            return self._skipped(step)
        noisy = self._releases.load(step, self.blocks, None if recorded is None else recorded.digest)
        if recorded is None and (latest := self._releases.latest()) is not None and latest > step:
            raise UserError(f"{self._ledger.path} lacks the line of step {step}, a released one: restore it. [training-line]")
        if noisy is None:
            return None
        if recorded is None:  # a crash came between keeping and paying
            self._ledger.charge(Release(step, self.blocks.digest(noisy)))
        else:
            self._ledger.note_replay(recorded)
        return self._update(step, noisy.to(self._vector.device))

    def release(self, step: int, total: BoundedSum) -> Tensor:
        """Adds the noise, and begins to keep and pay for the result: the release of a step.

        Args:
            step: 0 .. T - 1.
            total: the sum over all K groups.

        Returns:
            ``(P + statistics,)`` the noisy sum, which nothing may use before `commit`.

        Raises:
            UserError: see `apply`.
        """
        self._wait()
        require_planned(total, step, plan=self._plan, size=self.blocks.size)
        noisy, recorded, owed = total.values, self._ledger.release_of(step), [] if self._group is None else self._group.releases
        if recorded is None:
            self._ledger.check_budget(step, owed)
        if self._group is not None:
            self._group.whole = False
        if self._plan.private and not total.noise_std:
            noisy = self.noise.noisy(noisy, step)
        if recorded is None:
            self._committing = self._pool.submit(self._keep_and_pay if self._group is None else self._owe, step, noisy)
            return noisy
        release = Release(step, self.blocks.digest(noisy))
        if recorded != release:
            raise UserError(
                f"step {step} was released before and comes out differently now (another device, engine, version or number of "
                "cores): a second release of the same sampled records would cost more than a step. Resume where the run was "
                "started. [training-step-differs]"
            )
        if self._releases is not None and self._group is None:
            self._releases.save(release, noisy)
        self._ledger.note_replay(release)
        return noisy

    def _owe(self, step: int, noisy: Tensor) -> None:
        """In a thread of its own; `noisy` is not changed any more."""
        assert self._group is not None  # else it is kept
        self._group.releases.append(Release(step, self.blocks.digest(noisy)))

    def _keep_and_pay(self, step: int, noisy: Tensor) -> None:
        """In a thread of its own; `noisy` is not changed any more."""
        release = Release(step, self.blocks.digest(noisy))
        if self._releases is not None:
            self._releases.save(release, on_host(noisy))
        self._ledger.charge(release)

    def _update(self, step: int, noisy: Tensor) -> StepSummary:
        summed, statistics = noisy.split([self._vector.numel, self._plan.statistics_count])
        gradient = summed / self._plan.divisor  # `noisy` itself is being kept
        norm = self._norm(gradient)
        for processor in self.post_processors:
            gradient = processor.gradient(step, gradient)
        rate = self.update.take_step(step, self._vector.parameters, self._vector.split(gradient))
        self._require_finite(step)
        for processor in self.post_processors:
            processor.updated(step)
        return self._noted(StepSummary(step, self._plan.steps, rate, norm, self._told(step, statistics), self.spent))

    def _norm(self, gradient: Tensor) -> float:
        """L2; of a long gradient in float64, block by block."""
        if self.blocks.length is None:
            return gradient.norm().item()
        if gradient.device.type == "cuda":
            return torch.linalg.vector_norm(gradient, dtype=torch.float64).item()
        squares = [block.double().square().sum() for block in gradient.split(self.blocks.length)]
        return math.sqrt(math.fsum(torch.stack(squares).tolist()))

    def _skipped(self, step: int) -> StepSummary:
        rate = self.update.rate(step)
        self.update.skip(1)
        return self._noted(StepSummary(step, self._plan.steps, rate, None, self._told(step, None), self.spent))

    def _noted(self, summary: StepSummary) -> StepSummary:
        if self._group is not None:
            self._group.summaries.append(summary)
        return summary

    def spent(self, steps: int) -> float | None:
        """Epsilon of what was charged in the first so many steps; ``None`` where no guarantee holds."""
        return self._ledger.epsilon_after(steps) if self._plan.has_guarantee else None

    def _told(self, step: int, statistics: Tensor | None) -> MetricsWindow | None:
        """Takes in the statistics behind a noisy gradient."""
        return None if self.private_metrics is None else self.private_metrics.take(step, statistics)

    def _require_finite(self, step: int) -> None:
        # A function of the noisy sum only, so stopping here tells nothing more.
        if not all_finite(parameter.detach() for parameter in self._vector.parameters):
            raise UserError(
                f"step {step}: the parameters are no longer finite. Lower optimizer.learning_rate "
                f"(now {self.update.rate(step):g}) or use a warm-up. [optimizer-diverged]"
            )
