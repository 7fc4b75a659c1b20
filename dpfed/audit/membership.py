"""Membership inference on a finished run: can an adversary with the weights tell which records were trained on?

Members are training records. Non-members are held-out records, or records of another store. The adversary knows half of each,
and fits its attacks to them. The reported figures come from the other half. The same attacks are made on the weights before
training, which reveal nothing about any record. If these attacks succeed, members and non-members differ even without training,
and the figures measure this difference.

The module also writes the results of an audit into the run's directory, into files that only the user who started the audit can
read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import AUDITED
from dpfed.artifacts.resuming import resuming_command
from dpfed.artifacts.view import results_in
from dpfed.audit import RECORDS
from dpfed.audit.attacks import ATTACKS, Attack
from dpfed.audit.rates import CONFIDENCE, Rate, auc, most_tpr, tpr_at_fpr
from dpfed.audit.sides import Sides
from dpfed.audit.signals import Signals, signals_of
from dpfed.errors import UserError
from dpfed.files.atomic import make_folder, write_atomically
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent
from dpfed.protocol.statement import terms_at
from dpfed.runs import budgeting
from dpfed.runs.build import build
from dpfed.runs.outcome import rewrite_artifacts
from dpfed.training.checkpoint import Checkpoints

Weights = Literal["trained", "untrained"]
FPRS = (0.01, 0.001)
_WAIT = 30.0  # seconds to wait for another process that writes its results


@dataclass(frozen=True)
class Promise:
    """The guarantee of a run.

    Attributes:
        epsilon: Epsilon of the guarantee; ``None``: no guarantee.
        delta: Delta of the guarantee.
    """

    epsilon: float | None
    delta: float

    def most_tpr(self, fpr: float) -> float | None:
        """Returns the highest true positive rate that the guarantee allows; ``None`` without a guarantee."""
        return None if self.epsilon is None else most_tpr(fpr, self.epsilon, self.delta)


@dataclass(frozen=True)
class Operating:
    """The success of an attack at one false positive rate.

    Attributes:
        fpr: False positive rate.
        tpr: True positive rate, with its interval.
        most: Highest true positive rate that the run's (epsilon, delta) allows any attack; ``None`` without a guarantee.
    """

    fpr: float
    tpr: Rate
    most: float | None


@dataclass(frozen=True)
class Outcome:
    """The success of one attack on one set of weights.

    Attributes:
        attack: Name of the attack.
        title: Title of the attack for readers.
        weights: Weights under attack: those of the run, or those before training.
        auc: Area under the curve of the true positive rate over the false positive rate, with its interval. The intervals of
            all attacks on these weights hold jointly.
        points: Success at the false positive rates that the number of records can resolve.
    """

    attack: str
    title: str
    weights: Weights
    auc: Rate
    points: tuple[Operating, ...]


@dataclass(frozen=True)
class MembershipAudit:
    """The result of a membership audit. It is private: an exact function of the records.

    Attributes:
        name: Name of the run.
        public: Whether all records of the audit are public.
        members: Number of attacked members. The attacks are fitted to as many other members (or one more), whose membership
            the adversary knows. The adversary also knows that the references (`dpfed.audit.signals`) are training records.
        non_members: Number of attacked non-members.
        promise: Guarantee of the run.
        outcomes: Success of every attack on the trained and on the untrained weights.
    """

    name: str
    public: bool
    members: int
    non_members: int
    promise: Promise
    outcomes: tuple[Outcome, ...]

    @property
    def differ_untrained(self) -> bool:
        """Whether members and non-members differ even before training; the figures then say nothing about the run."""
        untrained = [outcome for outcome in self.outcomes if outcome.weights == "untrained"]
        return any(outcome.auc.low > 0.5 for outcome in untrained)


def audit_membership(
    folder: str | Path,
    non_members: str | Path | None = None,
    records: int = RECORDS,
    progress: Progress | None = None,
    randomness: Randomness | None = None,
    not_covered: str | None = None,
) -> tuple[Path, MembershipAudit]:
    """Attacks a finished run, and writes ``RUN/audit/membership.json``, which only the user who runs the audit can read.

    The run's card and report are written again, and mention the audit.

    Args:
        folder: Run directory, on the machine that has the run's records.
        non_members: Store of records that the run never saw; default: the held-out records of the run's store.
        records: Largest number of members, and of non-members, at least 200; 0: all.
        progress: Display of the stages; default: none.
        randomness: Randomness for the choice of records and for their views; default: a fresh one.
        not_covered: Justification for an audit of records that have a lifetime budget; ``None``: none is given.

    Returns:
        Path of the file, and its content.

    Raises:
        UserError: If there is no run, it is unfinished, has parts that were passed in Python, or is that of a federation that
            is not simulated; if its records are elsewhere, or its first or last weights are missing; if `records` is neither 0
            nor at least 200, or there are too few records on either side; if the store of non-members cannot be opened, or
            lacks captions that the model reads; if the records have a lifetime budget and the justification is missing, or
            there is a justification and no budget; if the run's directory cannot be written, or another process holds the run.
    """
    run, progress = _finished(folder), progress or Silent()
    parts = build(run.config(), progress=progress, terms=terms_at(run.terms))
    sides = Sides.draw(parts, non_members, records, randomness or Randomness.fresh())
    asked = False
    for store in {side.store.path: side.store for side in sides.parts}.values():
        asked |= budgeting.not_covered(run, store, "the figures of an audit are exact functions of the records", not_covered)
    if not_covered is not None and not asked:
        raise UserError(
            "the reason (not_covered) has no effect: the records have no lifetime budget. Leave it out. [attack-no-budget]",
            command="On the command line: --not-covered.",
        )
    results = results_in(run.results)
    privacy = results["privacy"]
    promise = Promise(privacy["epsilon"] if privacy["guarantee"] else None, privacy["delta"])
    saved = Checkpoints(run.checkpoints, 1).paths()
    if len(saved) < 2:
        raise UserError(
            f"{run.checkpoints} must hold the weights before training and the last ones: restore both. [attack-weights]"
        )
    both: dict[Weights, Path] = {"trained": saved[-1], "untrained": saved[0]}
    outcomes: list[Outcome] = []
    for weights, path in both.items():
        parts.learner.load_weights(path)
        advance = progress.stage(f"{weights} model", len(sides.member))
        signals = signals_of(parts.model, parts.config.objective.group_loss(), sides.views(), sides.reference_views(), advance)
        progress.note(f"fitting the attacks on the {weights} model")
        outcomes += attack_all(signals, sides.member, sides.known, weights, promise)
    members, others = (int((~sides.known & side).sum()) for side in (sides.member, ~sides.member))
    audit = MembershipAudit(parts.config.name, sides.public, members, others, promise, tuple(outcomes))
    path = keep(run, "membership", dataclasses.asdict(audit))
    with run.locked(wait=_WAIT):
        rewrite_artifacts(run, parts, results)
    return path, audit


def _finished(folder: str | Path) -> RunDirectory:
    run = RunDirectory.open(folder)
    if run.terms.is_file() and not run.simulation.is_file():
        raise UserError(
            f"{folder} is a federation's run: its training records are at the sites, where no audit reads them. Audit a run on "
            "records of this machine. [attack-sites]"
        )
    if not run.finished:
        raise UserError(f"{folder} is not finished: {resuming_command(run)} finishes it; audit it then. [attack-unfinished]")
    return run


def attack_all(
    signals: Signals, member: Tensor, known: Tensor, weights: Weights, promise: Promise, attacks: Sequence[Attack] = ATTACKS
) -> list[Outcome]:
    """Makes every attack on one set of weights.

    Args:
        signals: Signals of n records.
        member: Membership of each record, ``(n,)`` bool.
        known: Records to which the attacks are fitted, ``(n,)`` bool; the others are attacked.
        weights: Kind of the weights.
        promise: Guarantee of the run.
        attacks: Attacks to make.
    """
    confidence = 1 - (1 - CONFIDENCE) / len(attacks)
    outcomes = []
    for attack in attacks:
        scores = attack.fit(signals.rows(known), member[known])(signals)
        yes, no = (scores[(side & ~known).numpy()] for side in (member, ~member))
        points = tuple(Operating(fpr, tpr_at_fpr(yes, no, fpr), promise.most_tpr(fpr)) for fpr in FPRS if fpr * len(no) >= 1)
        outcomes.append(Outcome(attack.name, attack.title, weights, auc(yes, no, confidence), points))
    return outcomes


def keep(run: RunDirectory, name: str, result: dict[str, Any]) -> Path:
    """Writes ``RUN/audit/NAME.json``, which only the current user can read, and notes the audit for the run's card.

    A file of that name is replaced.

    Args:
        run: Directory of the run.
        name: Name of the file, without its suffix.
        result: Content of the file.

    Returns:
        Path of the file.

    Raises:
        UserError: If the audit cannot be noted; no file is written then.
        OSError: If the file cannot be written.
    """
    run.disclose(AUDITED)
    make_folder(run.audits, mode=0o700)
    path = run.audits / f"{name}.json"
    write_atomically(path, json.dumps(result, indent=2, allow_nan=False) + "\n", mode=0o600)
    return path
