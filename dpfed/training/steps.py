"""Opens a training in a folder: its ledger, checkpoints and coordinator, ready to take the first remaining step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dpfed.callbacks import Callback, StepSummary
from dpfed.errors import UserError
from dpfed.files.atomic import remove_drafts
from dpfed.privacy.ledger import Ledger, Release, has_begun
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.checkpoint import Checkpoints, Position, steps_of
from dpfed.training.commits import Commit, Commits
from dpfed.training.coordinator import Coordinator
from dpfed.training.group import Group
from dpfed.training.learner import Learner
from dpfed.training.loop import taken, train
from dpfed.training.post_processing import averaged_weights
from dpfed.training.releases import Releases
from dpfed.training.transport import Transport


@dataclass(frozen=True)
class Files:
    """Paths of the files of a training run, from which it can be resumed.

    Attributes:
        ledger: File of the releases that were charged.
        checkpoints: Folder of the checkpoints.
        releases: Folder of the noisy sums since one of the last checkpoints, used if each step is charged separately.
        commits: Folder of the encrypted state at the last commit, used if steps are charged in groups; ``None``: the folder
            ``commits`` next to `releases`.
    """

    ledger: Path
    checkpoints: Path
    releases: Path
    commits: Path | None = None


class Steps:
    """The remaining private steps of a training run. No other process may have the same files open.

    Args:
        learner: Model, records, loss and plan; the model gets the weights of the last checkpoint or commit, if there is one.
        files: Paths of this training's files; missing files are created.
        randomness: The coordinator's secret randomness; on resume, the same as before. With another secret, the noise of all
            further steps differs, and a charged step that must be computed again is refused.
        marks: Flags in the ledger's first line, such as ``{"fixed_seed": False}``; on resume, the same as before.
        keep: Number of checkpoints that are kept in addition to the first one, at least 1.
        checkpoint_every: Number of steps between two checkpoints.
        seen_outside: Whether parties outside the trust boundary see the parameters after each step. Then each step is charged
            before the next one begins, and noisy sums are kept for longer, because these parties refuse to compute a step
            again.
        commit_every: Largest number of steps that `run` charges in one write; ignored with `seen_outside`.

    Attributes:
        learner: The argument `learner`.
        ledger: Ledger of the releases that were charged.
        coordinator: Coordinator, which adds the noise, charges the ledger and updates the model.
        checkpoints: Checkpoints of the training.
        start: First remaining step.
        shown: Number of steps that callbacks have certainly seen. Callbacks are shown the steps from `shown` to `start`, maybe
            for the second time.
        resumed: Whether the training began before.
        damaged: Paths of unreadable checkpoints that are newer than `start`. Their steps are repeated, but not charged again.

    Raises:
        UserError: If the ledger is lost or damaged, belongs to another plan or version of dpfed, began with other `marks`, or
            lacks releases that a checkpoint or commit includes; if all checkpoints are damaged, or belong to another plan or
            model; or if the optimizer cannot be made (see `Update`).
    """

    def __init__(
        self,
        learner: Learner,
        files: Files,
        randomness: Randomness,
        marks: dict[str, bool] | None = None,
        keep: int = 2,
        checkpoint_every: int = 100,
        seen_outside: bool = False,
        commit_every: int = 10,
    ) -> None:
        self.learner, self._files, self._every, self._seen_outside = learner, files, checkpoint_every, seen_outside
        self.checkpoints, self._commit_every = Checkpoints(files.checkpoints, keep), commit_every
        commits = files.commits or files.releases.with_name("commits")
        self._commits = Commits(commits, randomness, files.checkpoints, learner.model)
        for folder in (files.checkpoints, files.releases):
            remove_drafts(folder)
        self.resumed = has_begun(files.ledger)
        self.ledger = self._open_ledger(marks or {})
        self.ledger.note_world_size(learner.world_size)
        self.coordinator: Coordinator = learner.coordinator(randomness, self.ledger, Releases(files.releases))
        # If outside parties see the parameters, each step waits until it is charged.
        self.coordinator.ahead = not seen_outside
        self.damaged: list[Path] = []
        self._told: list[StepSummary] = []
        self.start = self._load_or_save_first()
        self.shown = self._told[0].step if self._told else self.start

    @property
    def plan(self) -> PrivacyPlan:
        """Privacy plan of the training."""
        return self.learner.plan

    def run(
        self, transport: Transport, callbacks: Iterable[Callback] = (), advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Takes the remaining steps, and saves checkpoints.

        Args:
            transport: Transport that adds up the workers' sums.
            callbacks: Callbacks, in order; they see a step before its checkpoint is saved.
            advance: Function called after each step with the number of finished steps.

        Raises:
            UserError: If the budget is spent, a step was released before and differs now, or new parameters are not finite.
            OSError: If a release, the training's state or a checkpoint cannot be written.
        """
        callbacks = self._begin(callbacks)
        saving = _Saving(self._every, self._save)
        if not self._seen_outside:
            # A group also ends where an engine checks again that it computes groups alike: its message depends on the weights.
            group = Group(self._hold, self._commit_every, lambda done: (done - self.start) % self._every == 0)
            self.coordinator.in_groups(group, self._told)
        train(transport, self.coordinator, range(self.shown, self.plan.steps), [*callbacks, saving], advance)

    def each(self, transport: Transport, callbacks: Iterable[Callback] = ()) -> Iterator[StepSummary]:
        """Takes the remaining steps one by one, for the user's own loop.

        After the loop's body has run, the callbacks are called; then a checkpoint is saved, if one is due.

        Args:
            transport: Transport that adds up the workers' sums.
            callbacks: Callbacks, in order.

        Yields:
            The summary of each step, once the step is charged on disk.

        Raises:
            UserError: If the budget is spent, a step was released before and differs now, or new parameters are not finite.
            OSError: If a release or a checkpoint cannot be written.
        """
        callbacks, saving = self._begin(callbacks), _Saving(self._every, self._save)
        for summary in self._told:  # the model already has the updates of these steps
            for callback in callbacks:
                if callback.is_due(summary):
                    callback.on_step(summary)
        try:
            for summary in taken(transport, self.coordinator, range(self.start, self.plan.steps)):
                self.coordinator.commit()
                yield summary
                for callback in callbacks:
                    if callback.is_due(summary):
                        callback.on_step(summary)
                if saving.is_due(summary):
                    saving.on_step(summary)
        finally:
            self.coordinator.commit()

    def _begin(self, callbacks: Iterable[Callback]) -> list[Callback]:
        if self.resumed:
            self.ledger.note_resumed(self.start)
        begun = list(callbacks)
        for callback in begun:
            callback.on_begin(self.shown)
        return begun

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Returns a context manager in which the model has the weights that are measured and published."""
        return averaged_weights(self.learner.model, self.coordinator.post_processors)

    def _open_ledger(self, marks: dict[str, bool]) -> Ledger:
        path, plan, saved = self._files.ledger, self.plan, self.checkpoints.paths()
        if self.resumed:
            ledger = Ledger.open(path)
        elif saved:
            raise UserError(
                f"{path} is lost or damaged, but the checkpoint {saved[-1].name} exists, so what was spent is unknown: restore "
                "the ledger. [resume-no-ledger]"
            )
        else:
            path.unlink(missing_ok=True)  # its header was truncated by a crash: nothing was spent yet
            ledger = self.learner.create_ledger(path, marks)
        ledger.require_current()
        if ledger.plan.fingerprint != plan.fingerprint:
            raise UserError(
                f"the plan of {path} differs from that of the configuration and the records{_other_number(ledger.plan, plan)}: "
                "restore the configuration and the records, or start a new run. [resume-plan-changed]"
            )
        if ledger.marks != marks:
            raise UserError(
                f"{path} began with {ledger.marks}, but the configuration says {marks}: change the configuration back. "
                "[resume-marks]"
            )
        return ledger

    def _load_or_save_first(self) -> int:
        """Restores the newest commit or undamaged checkpoint, or saves a first one; returns the number of finished steps."""
        if not self.checkpoints.paths():
            self.checkpoints.save(Position(0, 0, self.plan.fingerprint), self.learner.model, self.coordinator)
            return 0
        newest, commit = self.checkpoints.paths()[-1], self._last_commit()
        beyond = None if commit is None else commit.position.step
        position, self.damaged = self.checkpoints.resume(self.learner.model, self.coordinator, beyond)
        known = [place for place in (position, commit and commit.position) if isinstance(place, Position)]
        by_checkpoint = max(steps_of(newest), 0 if position is None else position.charged)
        by_commit = 0 if commit is None else commit.position.charged
        if any(place.fingerprint != self.plan.fingerprint for place in known):
            raise UserError(
                f"{newest} and {self.ledger.path} do not belong together: they have different plans. Restore both from the "
                "same copy of the run. [resume-other-plan]"
            )
        if max(by_commit, by_checkpoint) > self.ledger.charged:
            seen = f"the checkpoint {newest} includes {by_checkpoint}"
            if by_commit > by_checkpoint:
                seen = f"the commit of step {beyond} includes {by_commit}"
            raise UserError(
                f"{seen} releases, but the ledger {self.ledger.path} has only {self.ledger.charged}: restore the ledger. "
                "[resume-ledger-behind]"
            )
        if position is not None:
            return position.step
        assert commit is not None  # without a commit, `resume` returned a checkpoint or raised
        self._commits.restore(commit, self.coordinator)
        self._told = [dataclasses.replace(summary, spent=self.coordinator.spent) for summary in commit.summaries]
        return commit.position.step

    def _last_commit(self) -> Commit | None:
        """Returns the newest commit. If a crash left a draft, this charges the steps of the draft that are not charged yet."""
        commit = self._commits.newest()
        if commit is None or commit.position.fingerprint != self.plan.fingerprint:
            return commit
        before, charged = commit.position.charged - len(commit.releases), self.ledger.charged
        if charged < (before if commit.is_draft else commit.position.charged):
            return commit  # the ledger lost lines: `_load_or_save_first` raises an error
        there = [release for release in commit.releases if self.ledger.release_of(release.step) is not None]
        if any(self.ledger.release_of(release.step) != release for release in there):
            self._commits.forget(commit)  # another process, on storage with broken locks, charged other releases of its steps
            return self._last_commit()
        if rest := commit.releases[len(there) :]:
            self.ledger.charge(*rest)
        if commit.is_draft:
            self._commits.name(commit.path)
        return commit

    def _hold(self, releases: Sequence[Release], summaries: Sequence[StepSummary]) -> Callable[[], None]:
        """Writes the training's state as a draft, and returns the function that makes it the newest state; see `Hold`."""
        position = Position(summaries[-1].done, self.ledger.charged + len(releases), self.plan.fingerprint)
        draft = self._commits.write(self.coordinator, position, releases, summaries)
        return lambda: self._commits.name(draft)

    def _save(self, done: int) -> None:
        position = Position(done, self.ledger.charged, self.plan.fingerprint)
        self.checkpoints.save(position, self.learner.model, self.coordinator)
        # If the newest checkpoint is damaged, the steps since the one before are repeated, bit for bit, on any machine. A
        # process can also recompute older steps where it computed them first; institutions do not answer twice.
        reserves = self.checkpoints.reserves()
        Releases(self._files.releases).forget(before=reserves[0] if self._seen_outside else reserves[-2:][0])


class _Saving(Callback):
    """A callback that saves checkpoints."""

    def __init__(self, every: int, save: Callable[[int], None]) -> None:
        self.every, self._save = every, save

    def on_step(self, step: StepSummary) -> None:
        """See `Callback`."""
        self._save(step.done)


def _other_number(before: PrivacyPlan, now: PrivacyPlan) -> str:
    """Returns a remark for a message if two plans differ in their number of records or units; otherwise ""."""
    first, second = before.sampling.records, now.sampling.records
    return "" if first == second else f" (number N of records or units: {first:,} before, {second:,} now)"
