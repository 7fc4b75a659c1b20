"""A training that is opened in a folder: its ledger, its checkpoints and its coordinator, at the first step that is left."""

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
    """What a training writes, so that it can be resumed.

    Attributes:
        ledger: the file of what was spent.
        checkpoints: the folder of the model at some steps.
        releases: the folder of noisy sums since the last checkpoints, where each step is charged by itself.
        commits: the folder of the encrypted state at the last commit, where steps are charged in groups; ``None``: ``commits``
            beside the releases.
    """

    ledger: Path
    checkpoints: Path
    releases: Path
    commits: Path | None = None


class Steps:
    """The private steps of a training that are left. No other process may have the same files open.

    Args:
        learner: what is trained; its model gets the weights of the last checkpoint, if there is one.
        files: of this training; they are made if they are not there.
        randomness: the coordinator's secret, on resume the same as before. With another one, steps that are not charged yet get
            other noise, and the run is not the same bit for bit.
        marks: flags in the ledger's first line, such as ``{"fixed_seed": False}``, on resume the same as before.
        keep: how many checkpoints are kept beside the first.
        checkpoint_every: steps from one to the next.
        seen_outside: whether parties outside the trust boundary see the parameters after each step. Then each step is charged
            before the next one begins, and releases are kept for longer, because these parties refuse to compute a step again.
        commit_every: steps that `run` charges together, at most, unless parties outside see each step.

    Attributes:
        learner: as given.
        ledger: what was spent.
        coordinator: adds the noise, pays and updates.
        checkpoints: of the training.
        start: the first step that is left.
        shown: steps that callbacks are known to have seen; those that were taken since are shown to them, maybe again.
        resumed: whether the training began before.
        damaged: checkpoints that are newer than `start`, and cannot be read. No step is charged twice for that.

    Raises:
        UserError: for a ledger that is lost, damaged or another plan's, and for checkpoints that do not belong to it.
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
        # Whoever sees parameters waits until they are charged.
        self.coordinator.ahead = not seen_outside
        self.damaged: list[Path] = []
        self._told: list[StepSummary] = []
        self.start = self._load_or_save_first()
        self.shown = self._told[0].step if self._told else self.start

    @property
    def plan(self) -> PrivacyPlan:
        """What is promised."""
        return self.learner.plan

    def run(
        self, transport: Transport, callbacks: Iterable[Callback] = (), advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Takes the steps, and saves checkpoints.

        Args:
            transport: adds up the workers' sums.
            callbacks: see the steps, in this order, before their checkpoint is saved.
            advance: learns after each step how many are done.
        """
        callbacks = self._begin(callbacks)
        saving = _Saving(self._every, self._save)
        if not self._seen_outside:
            # Groups also end where an engine looks anew whether it computes groups alike: what it says depends on the weights.
            group = Group(self._hold, self._commit_every, lambda done: (done - self.start) % self._every == 0)
            self.coordinator.in_groups(group, self._told)
        train(transport, self.coordinator, range(self.shown, self.plan.steps), [*callbacks, saving], advance)

    def each(self, transport: Transport, callbacks: Iterable[Callback] = ()) -> Iterator[StepSummary]:
        """Takes the steps one by one, for a loop of the user's own. Callbacks and checkpoint come behind the loop's body.

        Args:
            transport: adds up the workers' sums.
            callbacks: see the steps, in this order.

        Yields:
            What each step may tell, once it is on disk and charged.
        """
        callbacks, saving = self._begin(callbacks), _Saving(self._every, self._save)
        for summary in self._told:  # the model has their outcome
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
        """A block in which the model has the weights that are measured and published."""
        return averaged_weights(self.learner.model, self.coordinator.post_processors)

    def _open_ledger(self, marks: dict[str, bool]) -> Ledger:
        path, plan, saved = self._files.ledger, self.plan, self.checkpoints.paths()
        if self.resumed:
            ledger = Ledger.open(path)
        elif saved:
            raise UserError(
                f"{path} is lost or damaged, and {saved[-1].name} exists: spending is unknown. Restore it. [resume-no-ledger]"
            )
        else:
            path.unlink(missing_ok=True)  # a header that a crash cut short: nothing was spent yet
            ledger = self.learner.create_ledger(path, marks)
        ledger.require_current()
        if ledger.plan.fingerprint != plan.fingerprint:
            raise UserError(
                f"the plan of {path} is not that of the configuration and the records (N was {ledger.plan.sampling.records:,}, "
                f"is {plan.sampling.records:,}): restore both, or start a new run. [resume-plan-changed]"
            )
        if ledger.marks != marks:
            raise UserError(
                f"{path} began with {ledger.marks}, and the configuration says {marks}: change it back. [resume-marks]"
            )
        return ledger

    def _load_or_save_first(self) -> int:
        """Loads the last checkpoint that is not damaged, or saves the first one; returns how many steps are done."""
        if not self.checkpoints.paths():
            self.checkpoints.save(Position(0, 0, self.plan.fingerprint), self.learner.model, self.coordinator)
            return 0
        newest, commit = self.checkpoints.paths()[-1], self._last_commit()
        beyond = None if commit is None else commit.position.step
        position, self.damaged = self.checkpoints.resume(self.learner.model, self.coordinator, beyond)
        known = [place for place in (position, commit and commit.position) if isinstance(place, Position)]
        seen = max(steps_of(newest), *(place.charged for place in known))
        if any(place.fingerprint != self.plan.fingerprint for place in known) or seen > self.ledger.charged:
            raise UserError(
                f"{newest} and {self.ledger.path} do not belong together: the checkpoint saw {seen} releases, the ledger holds "
                f"{self.ledger.charged}. Restore the ledger. [resume-ledger-behind]"
            )
        if position is not None:
            return position.step
        assert commit is not None  # else there is a checkpoint, or an error
        self._commits.restore(commit, self.coordinator)
        self._told = [dataclasses.replace(summary, spent=self.coordinator.spent) for summary in commit.summaries]
        return commit.position.step

    def _last_commit(self) -> Commit | None:
        """The newest one. A draft is charged, as far as it is not yet: a crash came before or in the midst of that."""
        commit = self._commits.newest()
        if commit is None or commit.position.fingerprint != self.plan.fingerprint:
            return commit
        before, charged = commit.position.charged - len(commit.releases), self.ledger.charged
        if charged < (before if commit.is_draft else commit.position.charged):
            return commit  # lines are lost, and whoever resumes says so
        there = [release for release in commit.releases if self.ledger.release_of(release.step) is not None]
        if any(self.ledger.release_of(release.step) != release for release in there):
            self._commits.forget(commit)  # another process, on storage whose locks failed, charged other releases of its steps
            return self._last_commit()
        if rest := commit.releases[len(there) :]:
            self.ledger.charge(*rest)
        if commit.is_draft:
            self._commits.name(commit.path)
        return commit

    def _hold(self, releases: Sequence[Release], summaries: Sequence[StepSummary]) -> Callable[[], None]:
        """See `Hold`."""
        position = Position(summaries[-1].done, self.ledger.charged + len(releases), self.plan.fingerprint)
        draft = self._commits.write(self.coordinator, position, releases, summaries)
        return lambda: self._commits.name(draft)

    def _save(self, done: int) -> None:
        position = Position(done, self.ledger.charged, self.plan.fingerprint)
        self.checkpoints.save(position, self.learner.model, self.coordinator)
        # Should the newest checkpoint be damaged, steps since the one before are taken again, bit for bit, on any machine.
        # A process can also compute older ones again where it computed them first; institutions do not answer twice.
        reserves = self.checkpoints.reserves()
        Releases(self._files.releases).forget(before=reserves[0] if self._seen_outside else reserves[-2:][0])


class _Saving(Callback):
    """Saves checkpoints."""

    def __init__(self, every: int, save: Callable[[int], None]) -> None:
        self.every, self._save = every, save

    def on_step(self, step: StepSummary) -> None:
        """See `Callback`."""
        self._save(step.done)
