"""Audits a claim: attacks the run's own mechanism, and decides whether the results contradict its epsilon.

Two tests run the run's code on generated records and a model of canaries:

* neighbours: the distance by which a record moves the sum is compared with the sensitivity;
* repeated experiments: an attack guesses whether a canary was present, in one step or in a whole run of private moments.
  Clopper-Pearson bounds on the attack's true and false positive rates, compared with trade-off functions (f-DP), bound the
  noise.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfed.audit.findings import CERTAINTY, CONFIDENCE, EXPERIMENTS, ROOM, Finding, PrivacyAudit
from dpfed.audit.leaving import SUMS
from dpfed.audit.lower_bounds import Shown, of_repetitions
from dpfed.audit.moments import MomentTrial
from dpfed.audit.trade_off import Family, trade_off
from dpfed.audit.under_test import Scale, UnderTest
from dpfed.audit.white_box import Board, arrangement_of, most_moved, score
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent

_GROUP_SIZE = 4
_RATE = 0.5  # least sampling rate of the experiments: with rarely drawn canaries, even thousands of experiments show nothing
_STEPS = 40  # least number of steps of the experiments: repeated noise is estimated as a median over the steps
_RUNS = 1000  # largest number of runs in closed form: each run waits for the disk six times


def audit_claim(
    config: Config, plan: PrivacyPlan, world_size: int = 1, experiments: int = EXPERIMENTS, progress: Progress | None = None
) -> PrivacyAudit:
    """Attacks the mechanism of a plan.

    Args:
        config: Configuration of the run.
        plan: Plan of the run.
        world_size: Number of workers that share the records.
        experiments: Approximate number of repeated experiments at each of one or two sampling rates; more experiments raise
            the lower bounds. Runs of private moments are repeated at most 1,000 times.
        progress: Display of the stages; default: none.

    Raises:
        UserError: If the plan claims no privacy, or its mechanism draws no Poisson samples.
    """
    progress = progress or Silent()
    if not plan.has_guarantee:
        raise UserError(
            f"bounding.method = '{plan.bounding.method_name}' claims no privacy that an audit could contradict: choose a "
            "method with a guarantee (docs/methods.md). [audit-no-claim]"
        )
    with tempfile.TemporaryDirectory(prefix="dpfed-audit-") as folder:
        trial = _Trial(config, plan, world_size, experiments, progress, Path(folder))
        near, moved = trial.neighbours()
        findings = [attack() for attack in trial.attacks()]
    return PrivacyAudit(
        name=config.name,
        method=plan.bounding.method_name,
        world_size=world_size,
        claim=plan.epsilon(),
        delta=plan.promise.delta,
        noise_multiplier=plan.noise.multiplier,
        sensitivity=near,
        moved=moved,
        findings=tuple(findings),
    )


@dataclass(frozen=True)
class _Trial:
    config: Config
    plan: PrivacyPlan
    world_size: int
    experiments: int
    progress: Progress
    folder: Path

    def attacks(self) -> list[Callable[[], Finding]]:
        """Returns the attacks that apply to the plan."""
        if self.plan.bounding.method.closed_form:
            return [self.whole_runs]
        rates = dict.fromkeys((1.0, max(_RATE, min(1.0, self.plan.sampling.rate))))
        return [functools.partial(self.repeated, rate) for rate in rates]

    def _under(self, name: str, rate: float, batch: int, steps: int, canaries: int) -> UnderTest:
        folder = self.folder / name
        folder.mkdir()
        scale = Scale.of(rate, max(batch, 2 * _GROUP_SIZE * self.world_size), _GROUP_SIZE, steps)
        return UnderTest.build(self.config, self.plan, scale, canaries, folder, self.world_size)

    def neighbours(self) -> tuple[float, float]:
        """Returns the claimed sensitivity, and the largest observed L2 change of the sum by one record."""
        self.progress.note("how far one record moves the sum")
        if self.plan.bounding.method.closed_form:
            return self.plan.sensitivity, self._moments.moved()
        under = self._under("neighbours", 1.0, 8 * _GROUP_SIZE, 6, 1)
        return under.parts.plan.sensitivity, most_moved(under)

    @functools.cached_property
    def _moments(self) -> MomentTrial:
        return MomentTrial.build(self.plan, self.folder, self.world_size)

    def whole_runs(self) -> Finding:
        """Repeats whole runs in closed form, which have only two releases, and returns the finding."""
        trial, steps = self._moments, self.plan.steps
        self.progress.note("repeated runs of two steps")
        there, scores = trial.scores(_even(min(self.experiments, _RUNS)))

        def shown(family: Family, error: float) -> list[Shown]:
            known = np.arange(len(there)) // 2 % 2 == 0
            return of_repetitions({SUMS: scores}, there, known, family, error)

        return self._finding(trial.plan, steps, len(there), shown)

    def repeated(self, rate: float) -> Finding:
        """Repeats experiments of one step each, and returns the finding.

        Args:
            rate: Sampling rate of the records; 1 gives the tightest bound.
        """
        self.progress.note(f"repeated experiments of one step, sampling rate {rate:g}")
        tries, name = self.experiments, f"repeated-{rate:g}"
        arrangement = arrangement_of(self.plan.bounding.method)
        if arrangement == "one":
            under = self._under(name, rate, 8, _even(tries / 6), 1)
            coins = [np.full(1, there) for there in (True, False)]
        else:
            groups, canaries, each = (128, 128, 0.35) if arrangement == "group" else (32, 100, 1.0)
            fewer = min(1.0, tries / (_STEPS * canaries * each))
            groups, canaries = math.ceil(groups * fewer), math.ceil(canaries * fewer)
            under = self._under(name, rate, groups * _GROUP_SIZE, _even(tries / (canaries * each)), canaries)
            coins = [np.arange(canaries) % 2 == 0]
        runs = [score(Board.build(under), present, Randomness.fresh(), Randomness.fresh(), self.progress) for present in coins]
        parts, each_scores = zip(*(run.experiments() for run in runs), strict=True)
        which = np.concatenate(parts)
        scores = {channel: np.concatenate([scored[channel] for scored in each_scores]) for channel in each_scores[0]}
        there, known = which[:, 2] == 1, (which[:, 0] // 2 + which[:, 1]) % 4 == 0

        def shown(family: Family, error: float) -> list[Shown]:
            return of_repetitions(scores, there, known, family, error)

        return self._finding(under.parts.plan, 1, len(there), shown)

    def _finding(self, small: PrivacyPlan, steps: int, tries: int, shown: Callable[[Family, float], list[Shown]]) -> Finding:
        family = Family(*_poisson(small, steps))
        bounds = len(self.attacks())  # the bounds of all attacks hold jointly
        likely, certain = (shown(family, (1 - sure) / bounds) for sure in (CONFIDENCE, CERTAINTY))
        best = min(likely, key=lambda bound: bound.noise)
        whole = self.plan.epsilon()
        held = all(bound.noise > 0 and self._cost(bound.noise) <= whole * (1 + ROOM) for bound in certain)
        return Finding(
            steps=steps,
            rate=small.sampling.rate,
            tries=tries,
            channel=best.channel,
            noise=best.noise,
            epsilon=self._cost(best.noise),
            contradicts=not held,
        )

    def _cost(self, noise: float) -> float:
        """Returns epsilon of the whole run at a noise multiplier, rounded down."""
        if not math.isfinite(noise):
            return 0.0
        _, rate, steps = _poisson(self.plan, self.plan.steps)
        return trade_off(noise, rate, steps).epsilon(self.plan.promise.delta)


def _poisson(plan: PrivacyPlan, steps: int) -> tuple[float, float, int]:
    same = plan.mechanism.poisson_steps(steps)
    if same is None:
        raise UserError(
            f"bounding.method = '{plan.bounding.method_name}' draws no Poisson samples, which an audit needs: choose another "
            "method, such as 'group'. [audit-sampling]"
        )
    return same


def _even(steps: float) -> int:
    """Rounds up to an even number of steps, so that each sign of the gradients has half of the steps."""
    return 2 * math.ceil(steps / 2)
