"""Where an import writes: a hidden folder beside the new store. What is complete in it outlives the process.

    .NAME.import/.import/plan.json        what is imported, in which volumes, with which options
    .NAME.import/.import/surveys.jsonl    what was found out about the source's files beforehand
    .NAME.import/.import/volume-00000.*   what is known of a volume that is complete
    .NAME.import/records-00000.arrow      its records

The same import resumes there, whether it was killed, or met a file that has been fixed since. In the end the folder gets the
store's name.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpfed.data.processes import Processes, Tell
from dpfed.errors import UserError
from dpfed.files.atomic import cannot_write, refuse_existing, write_atomically
from dpfed.files.locking import file_lock

DRAFT = ".draft"  # of a file of records that is not complete
WORTH_A_PROCESS = 16 << 20  # bytes to read: in less time a process does not start
_NOTES = ".import"
_PLAN, _SURVEYS = "plan.json", "surveys.jsonl"


class Workplace:
    """The folder of one import; see `workplace`.

    Args:
        folder: in which the store is written.
        processes: that do the work.
        say: told what the user should know.
        surveyed: called with how many files were surveyed, and of how many.
    """

    def __init__(
        self,
        folder: Path,
        processes: Processes,
        say: Callable[[str], None] | None = None,
        surveyed: Callable[[int, int | None], None] | None = None,
    ) -> None:
        self.folder, self.notes, self.processes, self.say = folder, folder / _NOTES, processes, say or (lambda text: None)
        self._surveyed = surveyed or (lambda done, total: None)

    def volume(self, number: int) -> Path:
        """Where a volume is noted down."""
        return self.notes / f"volume-{number:05}"

    @property
    def worth_keeping(self) -> bool:
        """Whether some of several volumes are complete."""
        try:
            plan = json.loads((self.notes / _PLAN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return len(plan["volumes"]) > 1 and any(self.notes.glob("volume-*.json"))

    def forget(self, number: int) -> None:
        """Has a volume written again."""
        self.volume(number).with_suffix(".json").unlink(missing_ok=True)

    def survey(self, work: Callable[[Any, Tell], Any], files: Sequence[Path], items: Sequence[Any]) -> list[Any]:
        """Finds out about files what must be known before the first record is stored; what is known already is not read again.

        Args:
            work: gives of an item what JSON can hold.
            files: which file each item is about.
            items: what can be pickled.
        """
        known = {tuple(stamp): found for stamp, found in self._surveys()}
        stamps = [stamp_of(file) for file in files]
        left = [number for number, stamp in enumerate(stamps) if stamp not in known]
        with open(self.notes / _SURVEYS, "a", encoding="utf-8") as notes:
            most = sum(stamps[number][1] for number in left) // WORTH_A_PROCESS
            for number, found in self.processes.each(work, [items[number] for number in left], most=most):
                known[stamps[left[number]]] = found
                notes.write(json.dumps([stamps[left[number]], found]) + "\n")
                notes.flush()
                self._surveyed(len(known), len(stamps))
        return [known[stamp] for stamp in stamps]

    def _surveys(self) -> Iterator[tuple[list[Any], Any]]:
        with contextlib.suppress(OSError, ValueError):  # the last line may be torn
            for line in (self.notes / _SURVEYS).read_text(encoding="utf-8").splitlines():
                stamp, found = json.loads(line)
                yield stamp, found

    def plan(self, new: dict[str, Any]) -> dict[str, Any]:
        """The plan of the import that was interrupted here, or the new one.

        Args:
            new: what JSON can hold: the ``key`` of the fingerprint and the ``volumes`` are taken from the old one, everything
                else must be the same. A volume is a list of pieces ``[number, path, size, time of change, ...]``.

        Raises:
            UserError: if another import was interrupted here.
        """
        place, new = self.notes / _PLAN, json.loads(json.dumps(new))
        try:
            old = json.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError:
            write_atomically(place, json.dumps(new))
            return new
        except ValueError:
            old = None
        if old is None or _identity(old) != _identity(new):
            raise UserError(
                f"{self.folder} holds an interrupted import of other files, or with other options: repeat that import to "
                "resume it, or remove the folder to start again."
            )
        changed = {piece[0]: piece for volume in new["volumes"] for piece in volume}
        for number, volume in enumerate(old["volumes"]):
            if volume != [changed[piece[0]] for piece in volume]:
                self.forget(number)
        old["volumes"] = [[changed[piece[0]] for piece in volume] for volume in old["volumes"]]
        write_atomically(place, json.dumps(old))
        return old


def _identity(plan: dict[str, Any]) -> Any:
    """What two imports share if one can resume the other: all but key, sizes and times, and which volume a piece is in."""
    pieces = sorted((number, path, *rest) for volume in plan["volumes"] for number, path, _, _, *rest in volume)
    return {name: value for name, value in plan.items() if name not in ("key", "volumes")}, pieces


def stamp_of(file: Path) -> tuple[str, int, int]:
    """What changes when a file does: its path, size and time of change."""
    status = file.stat()
    return str(file), status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def workplace(
    dest: Path,
    workers: int = 1,
    wait: bool = False,
    say: Callable[[str], None] | None = None,
    surveyed: Callable[[int, int | None], None] | None = None,
) -> Iterator[Workplace]:
    """The workplace of an import, for this process alone until the ``with`` block ends.

    If the block fails, the complete ones of several volumes stay; without any, nothing does.

    Args:
        dest: the new store.
        workers: processes at most.
        wait: wait for another import to the same place, instead of refusing.
        say: told what the user should know.
        surveyed: see `Workplace`.

    Raises:
        UserError: if `dest` is there, nothing can be written there, or another import is under way.
    """
    refuse_existing(dest)
    folder = dest.parent / f".{dest.name}{_NOTES}"
    missing = [above for above in dest.parents if not above.exists()]
    taken = f"another import to {dest} is under way: wait until it has ended, or choose another destination."
    with contextlib.ExitStack() as stack:
        place = Workplace(folder, stack.enter_context(Processes(workers)), say, surveyed)
        try:
            place.notes.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(place.notes / ".lock", taken, math.inf if wait else 0.0))
        except OSError as error:
            refuse_existing(dest)  # the one who held the lock has ended
            raise cannot_write(dest, error) from error
        try:
            refuse_existing(dest)
            for draft in place.notes.glob(f"*{DRAFT}"):
                draft.unlink()
            yield place
        except UserError as error:
            if place.worth_keeping and not dest.exists():
                kept = f"{str(error).rstrip()} Completed parts are kept in {folder}: the same import resumes there."
                raise UserError(kept, error.public, error.command) from error
            raise
        finally:
            if dest.exists() or not place.worth_keeping:
                shutil.rmtree(folder, ignore_errors=True)
                for above in missing:
                    with contextlib.suppress(OSError):  # it holds something
                        above.rmdir()
