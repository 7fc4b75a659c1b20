"""What a reader of a privacy card must know beyond the promise: marks, and what no promise covers."""

from __future__ import annotations

from dataclasses import dataclass

STARTING_WEIGHTS = (
    "The starting weights: the guarantee does not cover the data that they were trained on. This matters unless these data are "
    "public."
)
AUDITS = (
    "The audits of this run (`dpfed audit`): the figures in `audit/` are exact functions of training records. Epsilon does not "
    "cover them."
)
PUBLIC_RECORDS = (
    "The public records that join every group: the model may remember them. That they were chosen without looking at the "
    "training records is up to whoever chose them."
)
LAST_BITS = (
    "The last bits of the noise: the proof is about real numbers, and the Gaussian noise is in floating point. dpfed claims no "
    "defence against attacks on these bits. privacy.noise = 'discrete' closes this gap."
)
ASSUMED_OF_BITS = (
    "A device that computes otherwise than assumed: the proof is about the bits that were released. It assumes that "
    "what a group adds comes out the same, whichever other groups there are, and that nobody can tell the bits of AES-256 "
    "from uniform ones."
)
SHARED_PASSES = (
    "A machine that computes a group's gradient by who else is in the same pass (bounding.engine = 'layerwise'): the proof "
    "assumes that it does not. Each machine was checked for this on noise before its first pass; it is not proven. "
    "bounding.engine = 'loop' computes every group by itself."
)
NOT_PROTECTED = (
    "Evaluation figures: they are exact functions of held-out records and labels.",
    "Other runs on the same records, such as a search for good settings, even if they were thrown away: they spend budget "
    "that this card does not count.",
    "The public figures: N, q, K, T, C and sigma are known to everyone.",
    "Anything, against somebody who has a copy of the run's secret key: they can compute the noise again and subtract it.",
    LAST_BITS,
    "Timing: how long a step takes can depend on its records. Somebody who watches the machine, or sees the times of the run's "
    "files, may learn that.",
    "Stops: a record that can no longer be read, or that makes a worker crash, stops the run in a step that needs it. The stop "
    "reveals that it was there.",
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
    "Raw diagnostics were written: losses, norms or clip rates without noise. Epsilon does not cover these files."
)
LABELLED_BANK = Mark(
    "k-NN and linear-probe figures are also exact functions of labelled training records. Epsilon covers the model itself, but "
    "not these figures."
)
NOT_PRIVATE = Mark(
    "The run was trained without privacy, as a reference (bounding.method = 'none'): nothing was clipped, no noise was added.",
    voids=True,
)
UNSOUND = Mark(
    "The method was run as it was published, for comparison. Its claim does not hold (docs/methods.md says why).",
    voids=True,
)


CONTRADICTED = Mark(
    "An audit contradicts the claim: attacks on the mechanism found out more than its epsilon allows (`privacy_audit.json`).",
    voids=True,
)


def started_privately(run: str, data: str, epsilon: str, delta: str) -> Mark:
    """For a run that starts from the weights of another private run."""
    return Mark(
        f"The starting weights are those of the private run {run} on {data} (epsilon {epsilon}, delta {delta}). For a record "
        "that was in both runs, the epsilons add up, and so do the deltas. This card states only its own."
    )


def sent(board: str, public: bool) -> Mark:
    """For a run whose figures were sent elsewhere."""
    more = "; and, as the records are public, evaluation figures" if public else ". Epsilon covers these figures"
    return Mark(f"Sent to {board} after the end of training: epsilon, learning rates and norms and means with noise{more}.")


def shared_unit(name: str) -> Mark:
    """For records that name what they share, such as a person, where each record is protected for itself."""
    return Mark(
        f"The records name a {name}, and several of them may share one {name}. Epsilon is for one record: a {name} with m "
        f"records has m times that epsilon, and a delta that also grows with m. privacy.unit = 'user' protects the {name}."
    )
