"""The request and the results of an audit of a claim, as values."""

from __future__ import annotations

from dataclasses import dataclass

EXPERIMENTS = 6000  # repeated ones, about
CONFIDENCE = 0.95  # of all that an audit shows, together
CERTAINTY = 0.999  # of an accusation, by whichever of its attacks
ROOM = 1e-3  # of rounding, in a sensitivity or an epsilon


@dataclass(frozen=True)
class Finding:
    """What one attack shows.

    Attributes:
        steps: of the mechanism that it saw.
        rate: at which its canaries were drawn.
        tries: experiments.
        channel: where the most was seen.
        noise: upper bound on the noise multiplier; infinity: nothing is shown.
        epsilon: lower bound on epsilon of the whole run, from `noise`.
        contradicts: with `CERTAINTY`, the claim does not hold.
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
    """Result of an audit. It is public: no record of the run's own has a part in it.

    Attributes:
        name: of the configuration.
        method: of bounding.
        world_size: workers that share the records.
        claim: epsilon of the run.
        delta: of the run.
        noise_multiplier: sigma, as claimed.
        sensitivity: as claimed, of the mechanism under test.
        moved: most that a record moved its sum; 0: not known.
        findings: of the attacks.
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
        """Whether a record moved the sum by more than the sensitivity."""
        return not self.moved <= self.sensitivity * (1 + ROOM)

    @property
    def contradicted(self) -> bool:
        """Whether the claim does not hold."""
        return self.too_far or any(finding.contradicts for finding in self.findings)

    @property
    def shown(self) -> float:
        """The highest lower bound on the run's epsilon."""
        return max(one.epsilon for one in self.findings)
