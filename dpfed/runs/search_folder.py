"""What a secret search keeps on disk while it goes on: one hidden folder, which its best run leaves at the end.

Nobody else can look into the folder (mode 0700), and its own times tell nothing, as all that changes lies one folder deeper.
The names of its runs are functions of the secret, so that a message that names one does not count them. The number of runs and
their settings are functions of the secret, too: a search that goes on after an interruption draws nothing again.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import create_file, name_folder, new_folder, sync_folder, write_atomically
from dpfed.files.locking import file_lock
from dpfed.files.reading import read_bytes, read_text
from dpfed.privacy.randomness import KEY_BYTES, Randomness
from dpfed.runs.directory import RunDirectory
from dpfed.runs.searched import HIDDEN, Searched


@dataclass(frozen=True)
class State:
    """How far a search is.

    Attributes:
        done: so many runs are finished.
        best: the number of the best of them, from 0; ``None``: none is.
    """

    done: int = 0
    best: int | None = None


class SearchFolder:
    """A search that is not finished. Use `create` or `find`.

    Attributes:
        searched: what is public of it.
        randomness: its secret.
        budget: the file that a run has as ``budget.json``.
    """

    def __init__(self, place: Path) -> None:
        self._outer = place / HIDDEN
        self._inner = self._outer / "inside"
        self._key, self._state, self._lock = (self._inner / name for name in ("secret.key", "state.json", ".lock"))
        self.budget = self._inner / RunDirectory.BUDGET
        searched = Searched.read(self._inner / RunDirectory.SEARCH)
        key = read_bytes(self._key) if self._key.is_file() else b""
        if searched is None or len(key) != KEY_BYTES:
            raise UserError(
                f"{self._outer} is damaged: it holds a search without its key, or without {RunDirectory.SEARCH}. Remove it to "
                "begin another search; what this one reserved of a lifetime budget stays spent."
            )
        self.searched, self.randomness = searched, Randomness(key)

    @classmethod
    def create(cls, place: Path, searched: Searched, randomness: Randomness) -> SearchFolder:
        """Begins a search, at once or not at all.

        Args:
            place: the folder where the best run will be.
            searched: what is public of it.
            randomness: its secret.

        Raises:
            UserError: if the folder cannot be made.
        """
        try:
            with new_folder(place.resolve() / HIDDEN, 0o700) as draft:
                inner = draft / "inside"
                inner.mkdir(0o700)
                create_file(inner / RunDirectory.SEARCH, searched.text)
                create_file(inner / "secret.key", randomness.master, mode=0o600)
        except OSError as error:
            raise UserError(f"cannot make a search in {place}: {error.strerror or error}; choose another folder.") from None
        return cls(place)

    @classmethod
    def find(cls, place: Path) -> SearchFolder | None:
        """The search that goes on in a folder; ``None``: there is none.

        Raises:
            UserError: if it is damaged.
        """
        return cls(place) if (place / HIDDEN).exists() else None

    @staticmethod
    def remove(place: Path) -> None:
        """Removes all of a search, its key first."""
        (place / HIDDEN / "inside" / "secret.key").unlink(missing_ok=True)
        shutil.rmtree(place / HIDDEN, ignore_errors=True)

    def locked(self) -> AbstractContextManager[None]:
        """Holds the search for this process.

        Raises:
            UserError: if another process holds it.
        """
        return file_lock(self._lock, f"{self._outer.parent} is in use by another process that searches there right now.")

    @property
    def begun(self) -> bool:
        """Whether all is reserved, so that runs may have taken steps."""
        return self._state.is_file()

    @property
    def state(self) -> State:
        """How far the search is.

        Raises:
            UserError: if nobody can tell.
        """
        try:
            return State(**json.loads(read_text(self._state))) if self.begun else State()
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{self._state} is damaged ({error}): restore it.") from error

    def note(self, state: State) -> None:
        """Writes down how far the search is."""
        write_atomically(self._state, json.dumps(vars(state)) + "\n")

    def run(self, number: int) -> Path:
        """The folder of a run."""
        return self._inner / self.randomness.key("name of a run", number).hex()[:8]

    def tidy(self) -> None:
        """Removes every run but the best one and the next one, and what an interruption left of others."""
        state = self.state
        kept = {self.run(state.done)} | (set() if state.best is None else {self.run(state.best)})
        for entry in self._inner.iterdir():
            if entry.is_dir() and entry not in kept:
                shutil.rmtree(entry)

    def publish(self, number: int, folder: Path) -> None:
        """Gives a run's folder its public place. No time of any file tells when the run was made.

        Args:
            number: of the run.
            folder: where nothing is.
        """
        day = datetime.date.fromisoformat(self.searched.began)
        stamp = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp()
        path = self.run(number)
        for parent, _, files in os.walk(path, topdown=False):
            for entry in (*(Path(parent, name) for name in files), Path(parent)):
                os.utime(entry, (stamp, stamp))
        name_folder(path, folder)
        os.utime(folder, (stamp, stamp))
        sync_folder(folder.parent)
