"""Defaults and results of an audit, which tests the privacy claim of a mechanism by attacks."""

from __future__ import annotations

from dataclasses import dataclass

EXPERIMENTS = 6000  # approximate default number of repeated experiments
CONFIDENCE = 0.95  # joint confidence of all lower bounds of an audit
CERTAINTY = 0.999  # joint confidence of a contradiction, over all attacks
ROOM = 1e-3  # relative tolerance for rounding, in a sensitivity or an epsilon


@dataclass(frozen=True)
class Finding:
    """The result of one attack.

    Attributes:
        steps: Number of steps of the mechanism in each experiment.
        rate: Sampling rate of the canaries.
        tries: Number of experiments.
        channel: Output of the mechanism (`dpfed.audit.leaving`) that gave the strongest bound.
        noise: Upper bound on the noise multiplier; infinity: no bound was found.
        epsilon: Lower bound on epsilon of the whole run, from `noise`.
        contradicts: Whether the attack contradicts the claim, at confidence `CERTAINTY`.
    """

    steps: int
    rate: float
    tries: int
    channel: str
    noise: float
    epsilon: float
    contradicts: bool


@dataclass(frozen=True)
class PrivacyAudit:
    """The result of an audit of a claim. It is public: the audit uses none of the run's own records.

    Attributes:
        name: Name in the configuration.
        method: Name of the bounding method.
        world_size: Number of workers that share the records.
        claim: Claimed epsilon of the run.
        delta: Delta of the run.
        noise_multiplier: Claimed noise multiplier, sigma.
        sensitivity: Claimed sensitivity of the mechanism under test.
        moved: Largest observed L2 change of the sum by one record; 0: not known; infinity: a sum was not finite.
        findings: Results of the attacks.
    """

    name: str
    method: str
    world_size: int
    claim: float
    delta: float
    noise_multiplier: float
    sensitivity: float
    moved: float
    findings: tuple[Finding, ...]

    @property
    def too_far(self) -> bool:
        """Whether a record moved the sum by more than the claimed sensitivity."""
        return not self.moved <= self.sensitivity * (1 + ROOM)

    @property
    def contradicted(self) -> bool:
        """Whether the audit contradicts the claim."""
        return self.too_far or any(finding.contradicts for finding in self.findings)

    @property
    def shown(self) -> float:
        """Highest lower bound on the run's epsilon."""
        return max(finding.epsilon for finding in self.findings)
