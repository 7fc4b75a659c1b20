"""Keeps the ledger of a run: an append-only file of its privacy charges, written before any charged release is used.

Each line is one JSON object. The first line describes the plan. Each further line records a release (the step, whether it was
charged, and a digest of the released noisy sum), a new largest number of workers, a resume after an interruption, or the hashes
of privacy card and model. Every line carries a hash over itself and all lines before it, so damage is detected. Edits are
detected unless somebody computes the hashes anew. A line without its newline is ignored: a release is used only after its whole
line is on disk.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.json_lines import DamagedLine, GrewElsewhere, Lines, append_lines, drop_torn_line, read_lines
from dpfed.files.reading import read_bytes
from dpfed.paths import path_of
from dpfed.privacy.plan import PrivacyPlan

FORMAT = 1
UNIVERSAL = "universal-1"  # in the first line, where digests are those of `dpfed.privacy.universal_hash`


@dataclass(frozen=True)
class Release:
    """One noisy sum that left the mechanism, or a charged step whose sum was discarded.

    Attributes:
        step: Training step.
        digest: Hash of the noisy sum, which distinguishes a bit-identical replay from a new release; ``discarded`` if the sum
            was discarded.
    """

    step: int
    digest: str


@dataclass(frozen=True)
class Artifacts:
    """The hashes of privacy card and model that the ledger records.

    Attributes:
        card: SHA-256 of the privacy card.
        model: SHA-256 of the model's weights.
    """

    card: str
    model: str


class Ledger:
    """The ledger of one run, for reading and appending. `create` and `open` make such objects.

    A method that appends a line raises a `UserError` if another process wrote to the file, too, and an ``OSError`` if the file
    cannot be written.

    Attributes:
        path: Path of the file.
        plan: Plan of the run.
        marks: Facts that the privacy card must state in addition to the plan, see `create`.
        replays: Number of times that a charged release was repeated.
        world_size: Largest number of workers that ever shared a step of the run.
        resumed: List with the step at which the run continued, for each resume after an interruption.
        repeated_after: List with one step for each resume and each replay: the largest step that was charged by then; -1 if
            none was charged.
        artifacts: Hashes of the newest privacy card and model; ``None`` if none were recorded yet.
        fingerprint: Fingerprint of the plan, as computed by the version of dpfed that made the ledger.
        head: Chained hash of the file up to the last line that does not record hashes of card and model: 16 hexadecimal
            digits.
        block: Length of a block of the sum, see `create`.
        universal: Whether digests are computed by `dpfed.privacy.universal_hash`, see `create`.
    """

    def __init__(
        self,
        path: Path,
        plan: PrivacyPlan,
        marks: dict[str, bool],
        releases: list[Release],
        replays: int,
        chain: str,
        block: int | None = None,
        universal: bool = False,
    ) -> None:
        self.path = path
        self.plan = plan
        self.marks = marks
        self.block = block
        self.universal = universal
        self.fingerprint = plan.fingerprint
        self._releases = releases
        self._by_step = {release.step: release for release in releases}
        self.replays = replays
        self._chain = chain
        self.resumed: list[int] = []
        self.repeated_after: list[int] = []
        self._goes_on: int | None = None
        self.world_size = 1
        self.artifacts: Artifacts | None = None
        self.head = chain
        self._lines = Lines([])

    @classmethod
    def create(
        cls,
        path: str | Path,
        plan: PrivacyPlan,
        marks: dict[str, bool] | None = None,
        block: int | None = None,
        universal: bool = False,
    ) -> Ledger:
        """Makes the ledger of a new run, and writes the first line.

        Args:
            path: Path of the new file.
            plan: Plan of the run.
            marks: Facts that the privacy card must state in addition to the plan, name -> whether the fact holds; they never
                change. The only name is ``fixed_seed``.
            block: Length of a block of the sum (`dpfed.privacy.blocks`). Each block has its own noise key, and with SHA-256 its
                own digest. ``None`` if a sum is one block.
            universal: Whether digests are computed by `dpfed.privacy.universal_hash`, for sums of several blocks, and not by
                SHA-256.

        Raises:
            UserError: If the file exists (a ledger is never started twice), or `plan` is not a `PrivacyPlan`.
            OSError: If the file cannot be written.
        """
        path = path_of(path, "the file of the ledger")
        if not isinstance(plan, PrivacyPlan):
            raise UserError(f"a ledger needs a plan: expected a dpfed.PrivacyPlan, got {type(plan).__name__}. [ledger-no-plan]")
        if path.exists():
            raise UserError(
                f"{path} exists: a ledger is never started twice; resume the run or choose another folder. [ledger-exists]"
            )
        ledger = cls(path, plan, marks or {}, [], 0, "", block, universal)
        header = {"ledger": FORMAT, "fingerprint": plan.fingerprint, "plan": plan.as_dict(), "marks": ledger.marks}
        if block is not None:
            header["block"] = block
        if universal:
            header["digest"] = UNIVERSAL
        chain = link("", header)
        line = json.dumps({**header, "chain": chain}) + "\n"
        write_atomically(path, line)  # half a header would make the file unusable
        ledger._lines = Lines([], len(line), len(line))
        ledger._chain = ledger.head = chain
        return ledger

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """Reads a ledger, and checks every line.

        The file is not changed, because its run may be appending a line at this moment.

        Raises:
            UserError: If the file is missing, unreadable, damaged or of a format that this version of dpfed does not know.
        """
        path = path_of(path, "the file of the ledger")
        try:
            lines = read_lines(path)
        except OSError as error:
            raise UserError(f"cannot read the ledger {path}: {error.strerror or error}. [ledger-unreadable]") from error
        except DamagedLine as error:
            raise _damaged(path, error.number) from None
        entries = lines.entries
        chain = ""
        head = ""
        artifacts = None
        for number, entry in enumerate(entries, start=1):
            claimed = entry.pop("chain", None)
            chain = link(chain, entry)
            if "papers" in entry:
                artifacts = entry["papers"]
            else:
                head = chain
            if claimed != chain or (number > 1 and not _is_whole(entry)):
                raise _damaged(path, number)
        header = entries[0] if entries and entries[0].get("ledger") == FORMAT else {}
        try:
            plan = PrivacyPlan.from_dict(header["plan"])
            marks, fingerprint = header["marks"], header["fingerprint"]
        except (TypeError, LookupError, AttributeError):  # a ledger of another version has other fields
            raise UserError(
                f"{path} is not a ledger of the format that this version of dpfed reads, format {FORMAT}: give a "
                "ledger.jsonl, or use the version of dpfed that wrote the file. [ledger-format]"
            ) from None
        releases = [entry for entry in entries[1:] if "charged" in entry]
        charged = [Release(entry["step"], entry["digest"]) for entry in releases if entry["charged"]]
        block, replays = header.get("block"), len(releases) - len(charged)
        digest = header.get("digest")
        if block is not None and not (type(block) is int and block >= 1):
            raise _damaged(path, 1)
        if digest not in (None, UNIVERSAL):
            raise UserError(
                f"{path} has digests of the kind {digest!r}, but this version of dpfed knows only '{UNIVERSAL}': use the "
                "version of dpfed that wrote the file. [ledger-digest]"
            )
        ledger = cls(path, plan, marks, charged, replays, chain, block, digest == UNIVERSAL)
        ledger._lines, ledger.head, ledger.fingerprint = lines, head, fingerprint
        ledger.resumed = [entry["resumed"] for entry in entries[1:] if "resumed" in entry]
        ledger.repeated_after = _repeated_after(entries[1:])
        ledger.artifacts = Artifacts(**artifacts) if artifacts else None
        ledger.world_size = max((entry["owners"] for entry in entries[1:] if "owners" in entry), default=1)
        return ledger

    def require_current(self) -> None:
        """Refuses the ledger of a run whose engines round differently from those of this version of dpfed.

        Raises:
            UserError: If the two versions compute different fingerprints; the run's steps could not be repeated bit for bit.
        """
        if self.fingerprint != self.plan.fingerprint:
            raise UserError(
                f"{self.path} belongs to a run of another version of dpfed, whose engines round differently. What the run "
                "spent stays spent. Start a new run, or resume this run with the version that began it. [ledger-older-run]"
            )

    @property
    def charged(self) -> int:
        """Number of charged steps, including those whose sum was discarded."""
        return len(self._releases)

    @property
    def steps(self) -> list[int]:
        """The charged steps, in the order in which they were charged."""
        return [release.step for release in self._releases]

    @property
    def last_step(self) -> int:
        """The largest charged step; -1 if no step was charged."""
        return max(self._by_step, default=-1)

    @property
    def epsilon(self) -> float:
        """Epsilon spent so far, at the plan's delta and by the plan's accountant, even if the method's claim does not hold."""
        return self.plan.epsilon(self.charged)

    @property
    def promised_epsilon(self) -> float | None:
        """Epsilon that the plan promises for the charged steps; ``None`` if there is no promise, or no finite epsilon."""
        spent = self.epsilon if self.plan.has_guarantee else math.inf
        return spent if math.isfinite(spent) else None

    def epsilon_after(self, steps: int) -> float:
        """Returns the epsilon of the charged steps among the first `steps` steps, in whatever order they were charged."""
        return self.plan.epsilon(sum(step < steps for step in self._by_step))

    def release_of(self, step: int) -> Release | None:
        """Returns the charged release of a step; ``None`` if the step was not charged."""
        return self._by_step.get(step)

    def check_budget(self, step: int, owed: Sequence[Release] = ()) -> None:
        """Refuses a release that cannot be charged.

        Args:
            step: Step of the release.
            owed: Earlier releases that were computed and are not charged yet.

        Raises:
            UserError: If the step was charged or computed before, or if the release would exceed the plan's target epsilon. A
                plan without a target has no limit.
        """
        if step in self._by_step or any(step == release.step for release in owed):
            where = "is charged in the ledger" if step in self._by_step else "was computed already and awaits its charge"
            raise UserError(f"step {step} {where}: a step is never released twice. [ledger-step-twice]")
        target, number = self.plan.promise.target_epsilon, self.charged + len(owed) + 1
        if target is not None and number > self.plan.steps and not self.plan.epsilon(number) <= target:
            raise UserError(
                f"the run's epsilon is spent: step {step} (release {number}) would exceed epsilon {target}. Further steps need "
                "a new run. [ledger-spent]"
            )

    def charge(self, *releases: Release) -> None:
        """Charges releases, in order and in one write. When the method returns, their lines are on disk.

        Only then may the releases be used.

        Raises:
            UserError: If a release is refused by `check_budget`; then none of the releases is charged.
        """
        for number, release in enumerate(releases):
            self.check_budget(release.step, releases[:number])
        self._note_resumed()
        charged = [{**dataclasses.asdict(release), "charged": True} for release in releases]
        self._append(*({**entry, "total": total} for total, entry in enumerate(charged, self.charged + 1)))
        self._releases += releases
        self._by_step |= {release.step: release for release in releases}

    def note_replay(self, release: Release) -> None:
        """Notes in the ledger that a charged release was repeated, bit for bit; this costs no privacy."""
        self._note_resumed()
        self._append({**dataclasses.asdict(release), "charged": False, "total": self.charged})
        self.replays += 1
        self.repeated_after.append(self.last_step)

    def note_world_size(self, world_size: int) -> None:
        """Notes in the ledger the number of workers that share a step, if this number is the largest so far.

        Each of these workers may see sums without noise.
        """
        if world_size > self.world_size:
            self._append({"owners": world_size})
            self.world_size = world_size

    def note_resumed(self, step: int) -> None:
        """Notes in the ledger that the run resumes after an interruption.

        The line is written just before the next line of a release or replay, so an attempt that is refused leaves no line.

        Args:
            step: First step that the run takes or repeats. If no step is left, the line is written at once.
        """
        self._goes_on = step
        if step >= self.plan.steps:
            self._note_resumed()

    def _note_resumed(self) -> None:
        if self._goes_on is not None:
            self._append({"resumed": self._goes_on})
            self.resumed.append(self._goes_on)
            self.repeated_after.append(self.last_step)
            self._goes_on = None

    def note_artifacts(self, card: str, model: str) -> None:
        """Notes in the ledger the hashes of the privacy card and of the model that follow from the releases so far.

        Args:
            card: SHA-256 of the privacy card, which states `head`.
            model: SHA-256 of the model's weights.
        """
        artifacts, head = Artifacts(card, model), self.head
        if artifacts != self.artifacts:
            self._append({"papers": dataclasses.asdict(artifacts)})
            self.artifacts, self.head = artifacts, head

    def _append(self, *entries: dict) -> None:
        chain, lines = self._chain, []
        for entry in entries:
            chain = link(chain, entry)
            lines.append({**entry, "chain": chain})
        try:
            self._lines = drop_torn_line(self.path, self._lines)  # a write that a crash cut short: no release relied on it
            # Two coordinators of one run, on storage whose locks failed, must not both charge a step.
            end = append_lines(self.path, lines, self._lines.end)
        except GrewElsewhere as error:
            raise UserError(
                f"{self.path} was written by another process, too: end one of the two processes. [ledger-writers]"
            ) from error
        self._lines = Lines([], end, end)
        self._chain = self.head = chain


def link(previous: str, entry: dict) -> str:
    """Returns the chained hash of a line and of all lines before it: 16 hexadecimal digits."""
    return hashlib.sha256((previous + json.dumps(entry, sort_keys=True)).encode()).hexdigest()[:16]


def _repeated_after(entries: list[dict]) -> list[int]:
    """Returns the last charged step before each resume and each replay; -1 if none was charged."""
    repeated = []
    last = -1
    for entry in entries:
        if entry.get("charged"):
            last = max(last, entry["step"])
        elif "charged" in entry or "resumed" in entry:
            repeated.append(last)
    return repeated


def _is_whole(entry: dict) -> bool:
    """Returns whether a line after the first has values of the right types.

    Numbers must be whole, for JSON also allows others, such as NaN.
    """
    counts = [(entry["step"], 0)] if "charged" in entry and "step" in entry else []
    counts += [(entry[name], least) for name, least in (("owners", 1), ("resumed", 0)) if name in entry]
    released = "charged" not in entry or (
        isinstance(entry["charged"], bool) and "step" in entry and isinstance(entry.get("digest"), str)
    )
    hashes = entry.get("papers", {"card": "", "model": ""})
    noted = isinstance(hashes, dict) and hashes.keys() == {"card", "model"}
    return released and noted and all(type(count) is int and count >= least for count, least in counts)


def _damaged(path: Path, number: int) -> UserError:
    return UserError(
        f"the ledger {path} is damaged at line {number}: what was spent is no longer certain, so nothing more is spent. "
        "Restore the file from a backup. [ledger-damaged]"
    )


def has_begun(ledger: Path) -> bool:
    """Returns whether a ledger exists and has a complete first line.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        return b"\n" in read_bytes(ledger)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(
            f"cannot read {ledger}: {error.strerror or error}. Make it readable, or restore it. [resume-ledger-unreadable]"
        ) from error
