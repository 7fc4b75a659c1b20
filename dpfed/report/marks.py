"""What a reader of a privacy card must know beyond the promise: marks, and what no promise covers."""

from __future__ import annotations

from dataclasses import dataclass

STARTING_WEIGHTS = "The starting weights: the guarantee does not cover what they were trained on, unless that is public."
AUDITS = (
    "The audits that were made of this run (`dpfed audit`): their figures, in `audit/`, are exact functions of training "
    "records. Epsilon does not cover whoever sees them."
)
NOT_PROTECTED = (
    "Evaluation figures: they are exact functions of held-out records and labels.",
    "Other runs on the same records, also those that were thrown away, such as a search for good settings: they spend budget "
    "that this card does not contain.",
    "The public figures: N, q, K, T, C and sigma are known to everyone.",
    "Against whoever holds a copy of the run's secret key: the noise can be computed again and taken off.",
    "Floating-point Gaussian noise: the proof is about real numbers; no defence against attacks on the last bits is claimed.",
    "Timing: how long a step takes can depend on the records that it drew. Who watches the machine, or sees the times of the "
    "run's files, may learn it.",
    "A record that cannot be read any more, or makes a worker crash, stops the run in a step that draws it: that it stopped "
    "tells of the draw.",
)


@dataclass(frozen=True)
class Mark:
    """Something that a reader of the card must know.

    Attributes:
        text: one sentence.
        voids: True when no guarantee holds because of it.
    """

    text: str
    voids: bool = False


FIXED_SEED = Mark("The seed was fixed: anyone can compute the noise again, so no privacy is guaranteed.", voids=True)
RAW_DIAGNOSTICS = Mark(
    "Raw diagnostics were written: losses, norms or clip rates without noise. Epsilon does not cover whoever sees those files."
)
LABELLED_BANK = Mark(
    "k-NN and linear-probe figures are exact functions of labelled training records, too. Epsilon does not cover whoever sees "
    "those figures; the model itself is covered."
)
NOT_PRIVATE = Mark(
    "The run was trained without privacy, as a reference (bounding.method = 'none'): nothing was clipped, no noise was added.",
    voids=True,
)
UNSOUND = Mark(
    "The method was run as it was published, for comparison, and its claim does not hold (docs/methods.md says why).",
    voids=True,
)


def shared_unit(name: str) -> Mark:
    """For records that name what they share, such as a person, where each record is protected for itself."""
    return Mark(
        f"The records name a {name}, and several of them may share one {name}: epsilon is for one record, so a {name} with m "
        f"records has m times that epsilon, with a delta that grows with m, too. privacy.unit = 'unit' protects the {name}."
    )
