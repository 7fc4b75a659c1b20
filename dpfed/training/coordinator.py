"""The coordinator: adds the noise, once, and turns the noisy sum into new parameters.

Nothing that depends on a release may leave the process before the release is charged (docs/guarantee.md, Output commit);
`commit` ensures this. If steps are charged in groups (`in_groups`), `commit` charges all steps since the last commit in one
write. Otherwise a second thread saves and charges each release, and `commit` waits for that thread.

If the sites add the noise among themselves (`dpfed.protocol.trust`), the sum states the noise that it carries. The
coordinator then adds none, and rejects a sum with less noise than the plan's.
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
from dpfed.training.planned_sum import largest, require_planned
from dpfed.training.post_processing import PostProcessor, post_processors
from dpfed.training.private_metrics import PrivateMetrics
from dpfed.training.releases import Releases
from dpfed.training.undisturbed import undisturbed

DISCARDED = "discarded"  # recorded in the ledger instead of a digest


class Coordinator:
    """The party that holds the model, the noise, the optimizer and the ledger.

    Attributes:
        blocks: Division of the sum into blocks, as recorded in the ledger.
        noise: Noise that is added to the sum.
        update: Optimizer and its learning rates.
        optimizer: The torch optimizer.
        post_processors: Post-processors of every noisy sum, in order.
        private_metrics: The post-processor that takes in the groups' statistics; ``None`` if the plan releases none.
        ahead: Whether the model may be updated while the release is still being saved and charged. Code that sets this must
            call `commit` before anything that depends on a release leaves the process, as `dpfed.training.loop.train` does.

    Args:
        plan: Plan with the noise, the divisor and the number of steps.
        model: Model whose trainable parameters are updated in place.
        config: Optimizer, schedule and post-processors.
        randomness: The coordinator's secret randomness.
        ledger: Ledger that is written before anything that depends on a release leaves the process.
        releases: Store that keeps noisy sums until a checkpoint includes their effect; without it, a resumed run must recompute
            them exactly.
        noise_std: Standard deviation of the noise that the sites add, if it exceeds the plan's; ``None``: the plan's.
        own_optimizer: The user's own optimizer, used instead of the one that `config` names.
        manual: Whether the user steps the optimizer; see `Update`.

    Raises:
        UserError: If the ledger belongs to another plan or to a version of dpfed whose engines round differently, the model has
            no trainable parameter, or the optimizer cannot be made (see `Update`).
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
            raise UserError(
                f"{ledger.path} belongs to another plan: noise and accounting must follow one plan. Give this plan's ledger. "
                "[training-other-plan]"
            )
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
        """L2 norm with which the next step compares the norms of gradients, and to which adaptive clipping clips gradients.

        ``None``: the plan releases no statistics of the groups, so there is no such norm.
        """
        return None if self.private_metrics is None else self.private_metrics.threshold

    def in_groups(self, group: Group, told: Iterable[StepSummary] = ()) -> None:
        """Switches to charging in groups: saves no single releases, and charges all steps since the last commit in one write.

        Args:
            group: The first group of steps, empty.
            told: Summaries of steps that are charged and already in the model's weights, but that callbacks have perhaps not
                seen yet; `replay` returns these summaries.
        """
        self.commit()
        self.ahead, self._group = True, group
        self._told_before = {summary.step: summary for summary in told}

    @property
    def owes(self) -> bool:
        """Returns whether the present group of steps has steps that are not charged yet."""
        return self._group is not None and (self._committing is not None or bool(self._group.releases))

    @property
    def is_full(self) -> bool:
        """Returns whether the group of steps must be charged now, even if no callback is due."""
        return self._group is not None and self._group.is_full

    def commit(self) -> None:
        """Charges all releases, and waits until all that a resume needs is on disk. After a failure, further calls fail, too.

        Raises:
            OSError: If a release or state could not be saved or charged.
            UserError: If the budget is spent.
        """
        self.wait()
        if self._group is not None:
            self._group.charge(self._ledger)

    def wait(self) -> None:
        """Waits for the thread that hashes, saves or charges the last release.

        Raises:
            OSError: If the release could not be saved or charged.
            UserError: If the budget is spent.
        """
        if self._committing is not None:
            self._committing.result()
            self._committing = None

    def apply(self, step: int, total: BoundedSum) -> StepSummary:
        """Takes one step: adds the noise, saves and charges the release, divides by the public divisor, updates the model.

        If `ahead` is set, the release may be saved and charged later, at the latest by `commit`.

        Args:
            step: Number of the step, 0 .. T - 1.
            total: Sum over all K groups.

        Returns:
            The summary of the step, which is public once the step is charged.

        Raises:
            UserError: If the sum does not match the plan, the budget is spent, the step was released before and differs now, or
                the new parameters are not finite. In the last case the release is charged all the same.
            OSError: If a release could not be saved or charged.
        """
        if self._group is None:
            noisy = self.release(step, total)
            if not self.ahead:
                self.commit()
            return self._update(step, noisy)
        with undisturbed():  # an interrupt in here would leave no state that can be saved
            noisy = self.release(step, total)
            summary = self._update(step, noisy)
            self._group.whole = True
        return summary

    def discard(self, step: int) -> StepSummary:
        """Charges a step whose sum is discarded. The step still costs budget: somebody may have seen a part of the sum.

        Args:
            step: 0 .. T - 1.

        Returns:
            The summary of the discarded step.

        Raises:
            UserError: If the budget is spent, or the step was released before.
            OSError: If an earlier release could not be saved, or this step or an earlier one could not be charged.
        """
        self.commit()
        self._ledger.charge(Release(step, DISCARDED))
        return self._skipped(step)

    def replay(self, step: int) -> StepSummary | None:
        """Repeats a step from its saved release, after an interruption.

        Args:
            step: 0 .. T - 1.

        Returns:
            The summary of the step, also if the step was discarded, or if the model already has its update (see `in_groups`).
            ``None``: no release of the step is saved.

        Raises:
            UserError: If the ledger lost the line of a release that is still saved, the budget is spent, or the new parameters
                are not finite.
            OSError: If a saved release cannot be read, or the ledger cannot be written.
        """
        if (told := self._told_before.pop(step, None)) is not None:
            return told
        if self._releases is None or self._committing is not None:  # this process made the last release: no later one is saved
            return None
        recorded = self._ledger.release_of(step)
        if recorded is not None and recorded.digest == DISCARDED:
            return self._skipped(step)
        noisy = self._releases.load(step, self.blocks, None if recorded is None else recorded.digest)
        if recorded is None and (latest := self._releases.latest()) is not None and latest > step:
            raise UserError(f"{self._ledger.path} lacks step {step}, which was released: restore the ledger. [training-line]")
        if noisy is None:
            return None
        if recorded is None:  # a crash came between saving and charging
            self._ledger.charge(Release(step, self.blocks.digest(noisy)))
        else:
            self._ledger.note_replay(recorded)
        return self._update(step, noisy.to(self._vector.device))

    def release(self, step: int, total: BoundedSum) -> Tensor:
        """Makes the release of a step, by adding the noise.

        A second thread then saves and charges the release. If steps are charged in groups, `commit` charges it instead.

        Args:
            step: 0 .. T - 1.
            total: Sum over all K groups.

        Returns:
            The noisy sum, shape ``(P + statistics,)``. Nothing that depends on it may leave the process before `commit`.

        Raises:
            UserError: If the sum does not match the plan, the budget is spent, or the step was released before and differs now.
            OSError: If a release could not be saved or charged.
        """
        self.wait()
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
                f"step {step} was released before and comes out differently now, perhaps because of another device, engine, "
                "version or number of cores: two releases of the same sampled records would cost more than one step. Resume "
                "where the run was started. [training-step-differs]"
            )
        if self._releases is not None and self._group is None:
            self._releases.save(release, noisy)
        self._ledger.note_replay(release)
        return noisy

    def _owe(self, step: int, noisy: Tensor) -> None:
        """Adds a release to the group, to be charged later. Runs in a second thread; nobody changes `noisy` any more."""
        assert self._group is not None  # without a group, `_keep_and_pay` runs instead
        self._group.releases.append(Release(step, self.blocks.digest(noisy)))

    def _keep_and_pay(self, step: int, noisy: Tensor) -> None:
        """Saves and charges a release. Runs in a second thread; nobody changes `noisy` any more."""
        release = Release(step, self.blocks.digest(noisy))
        if self._releases is not None:
            self._releases.save(release, on_host(noisy))
        self._ledger.charge(release)

    def _update(self, step: int, noisy: Tensor) -> StepSummary:
        summed, statistics = noisy.split([self._vector.numel, self._plan.statistics_count])
        gradient = summed / self._plan.divisor  # not in place: another thread is saving `noisy`
        squares = self._squares(gradient)
        for processor in self.post_processors:
            gradient = processor.gradient(step, gradient)
        rate = self.update.take_step(step, self._vector.parameters, self._vector.split(gradient))
        parameters = self._vector.parameters
        weights = [self._vector.gather()] if _on_gpu(gradient) else [parameter.detach() for parameter in parameters]
        *parts, bound = torch.cat([squares, largest(weights).double().view(1)]).tolist()  # the only wait for a GPU here
        self._require_finite(step, bound)
        for processor in self.post_processors:
            processor.updated(step)
        norm = math.sqrt(math.fsum(parts))
        return self._noted(StepSummary(step, self._plan.steps, rate, norm, self._told(step, statistics), self.spent))

    def _squares(self, gradient: Tensor) -> Tensor:
        """Returns a gradient's squared L2 norm as summands, ``(n,)`` float64: one on a GPU, one for each block on a CPU."""
        if self.blocks.length is None:
            return gradient.norm().double().square().view(1)  # exact: a float32 has 24 bits
        if _on_gpu(gradient):
            return torch.linalg.vector_norm(gradient, dtype=torch.float64).square().view(1)
        return torch.stack([block.double().square().sum() for block in gradient.split(self.blocks.length)])

    def _skipped(self, step: int) -> StepSummary:
        rate = self.update.rate(step)
        self.update.skip(1)
        return self._noted(StepSummary(step, self._plan.steps, rate, None, self._told(step, None), self.spent))

    def _noted(self, summary: StepSummary) -> StepSummary:
        if self._group is not None:
            self._group.summaries.append(summary)
        return summary

    def spent(self, steps: int) -> float | None:
        """Returns the epsilon of all releases that the first `steps` steps charged; ``None`` if no guarantee holds."""
        return self._ledger.epsilon_after(steps) if self._plan.has_guarantee else None

    def _told(self, step: int, statistics: Tensor | None) -> MetricsWindow | None:
        """Passes the noisy statistics of a step to the private metrics; returns the window that the step ends."""
        return None if self.private_metrics is None else self.private_metrics.take(step, statistics)

    def _require_finite(self, step: int, bound: float) -> None:
        # The parameters are a function of the noisy sums only, so stopping here reveals nothing more.
        if not math.isfinite(bound):
            lower = "the learning rate of your optimizer" if self.update.has_own_rate else "optimizer.learning_rate"
            raise UserError(
                f"step {step}: the parameters are no longer finite. Lower {lower} "
                f"(now {self.update.rate(step):g}) or use a warm-up. [optimizer-diverged]"
            )


def _on_gpu(values: Tensor) -> bool:
    return values.device.type == "cuda"
