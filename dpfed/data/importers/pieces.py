"""A source in pieces that any process can read, and the volumes that they are imported into.

Which pieces make a volume follows from their sizes alone. So a store is the same however many processes write it, and however
often they are interrupted.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from dpfed.data.importers.access import Access
from dpfed.data.importers.source import FileRecord, Item, Piece, Source, Unreadable, content_hash
from dpfed.data.importers.workplace import DRAFT, Workplace, stamp_of
from dpfed.data.processes import Tell
from dpfed.data.store.fingerprint import new_key
from dpfed.data.store.layout import volume_files
from dpfed.data.store.record import record_key
from dpfed.data.store.volume import Form, Volume, VolumeWriter
from dpfed.data.store.writing import StoreWriter, ids_at, repeats, write_around
from dpfed.files.atomic import name_directory

Progress = Callable[[int, int | None], None]  # (records so far, of how many)

_SMALLEST = 16 << 20  # bytes of the sources of a volume
_MOST = 256  # volumes, and some more where pieces are large
_TOLD = 256  # records between two reports
_COPY = re.compile(r"(.*)\+\d+", re.DOTALL)


def volumes_of(pieces: Sequence[Piece]) -> list[list[int]]:
    """The numbers of the pieces of each volume, in order."""
    least = max(_SMALLEST, sum(piece.size for piece in pieces) // _MOST)
    volumes: list[list[int]] = [[]]
    held = 0
    for number, piece in enumerate(pieces):
        if held >= least:
            volumes.append([])
            held = 0
        volumes[-1].append(number)
        held += piece.size
    return volumes


@dataclass(frozen=True)
class Job:
    """What a process needs to write a volume.

    Attributes:
        place: of what is known of the volume, see `Volume.save`.
        file: of its records.
        pieces: what it holds.
        form: of the store.
        key: of its fingerprint.
        access: which files may be read.
        by_content: name records by what they hold; the beginning of a name is the split's where the source names them, too.
        named: the source names its records.
        taken: ids of records of earlier volumes -> how many have them.
    """

    place: Path
    file: Path
    pieces: tuple[Piece, ...]
    form: Form
    key: bytes
    access: Access
    by_content: bool
    named: bool
    taken: dict[str, int]


def write_volume(job: Job, tell: Tell) -> int:
    """Writes a volume; it is there when this returns, and not before.

    Returns:
        How many records there were, with those that cannot be read.
    """
    draft = job.place.with_suffix(f".{os.getpid()}{DRAFT}")
    writer = VolumeWriter(draft, job.form, job.key, job.taken)
    try:
        records = itertools.chain.from_iterable(piece.records() for piece in job.pieces)
        store_records(records, writer, job.access, job.by_content, job.named, job.form, tell)
        volume = writer.finish()
        os.replace(draft, job.file)
        volume.save(job.place)
        return volume.met
    finally:
        writer.close()
        draft.unlink(missing_ok=True)


def store_records(
    records: Iterator[Item],
    writer: VolumeWriter | StoreWriter,
    access: Access,
    by_content: bool,
    named: bool,
    form: Form,
    tell: Tell,
) -> int:
    """Gives the records of a source to a writer; see `Job`.

    Returns:
        How many there were, with those that cannot be read.
    """
    done = 0
    for done, item in enumerate(records, start=1):  # noqa: B007 - the count is read after the loop
        record = item.read(access) if isinstance(item, FileRecord) else item
        if isinstance(record, Unreadable):
            writer.reject(record.id, record.reason)
        elif by_content:
            beginning = f"{record.split}/" if named else record.id
            name = writer.counted(beginning + content_hash(record, form.label_names))
            writer.add(replace(record, id=name, place=record.place or record.id))
        else:
            writer.add(record)
        if done % _TOLD == 0:
            tell(done)
    return done


def taken_before(folder: Path, files: Sequence[str], volumes: Sequence[Volume]) -> dict[int, dict[str, int]]:
    """Which volumes hold records that earlier ones hold as well, where records are named by what they hold.

    Args:
        folder: of the files.
        files: of records, one for each volume.
        volumes: in order.

    Returns:
        Volume -> ids -> how many records of earlier volumes have them.
    """
    starts = np.cumsum([0] + [len(volume.numbers) for volume in volumes])
    keys = [volume.numbers["key"].to_numpy() for volume in volumes]
    found, names = repeats(np.concatenate(keys)), set()
    for which, (start, end) in enumerate(itertools.pairwise(starts)):
        own = found[(found >= start) & (found < end)] - start
        for id in ids_at(folder / files[which], volumes[which], own):
            names.add(copied[1] if (copied := _COPY.fullmatch(id)) else id)
    before, taken = dict.fromkeys(names, 0), {}
    by_key = {record_key(name): name for name in names}
    wanted = np.array(sorted(by_key), np.uint64)
    for which, volume in enumerate(volumes):
        here = {by_key[int(key)] for key in wanted[np.isin(wanted, keys[which])]} | (volume.copies.keys() & names)
        if own_taken := {name: before[name] for name in sorted(here) if before[name]}:
            taken[which] = own_taken
        for name in here:
            before[name] += volume.copies.get(name, 1)
    return taken


class VolumesPlan:
    """An import in volumes: what was done of it before is not done again.

    Args:
        place: where it writes.
        source: opened, with its pieces.
        form: of the store.
        access: which files may be read.
        by_content: see `Job`.

    Raises:
        UserError: if another import was interrupted at this place.
    """

    def __init__(self, place: Workplace, source: Source, form: Form, access: Access, by_content: bool) -> None:
        self._place, self._source, self._form, self._access, self._by_content = place, source, form, access, by_content
        pieces = [[number, *stamp_of(piece.file), piece.mark] for number, piece in enumerate(source.pieces)]
        plan = place.plan(
            {
                "form": asdict(form),
                "by content": by_content,
                "outside": access.outside,
                "key": new_key(form.public).hex(),
                "volumes": [[pieces[number] for number in volume] for volume in volumes_of(source.pieces)],
            }
        )
        self._key = bytes.fromhex(plan["key"])
        self._volumes: list[list[int]] = [[piece[0] for piece in volume] for volume in plan["volumes"]]
        self._files = volume_files(len(self._volumes))

    def carry_out(self, progress: Progress | None) -> None:
        """Writes the volumes that are not complete.

        Args:
            progress: called now and then with (records so far, of how many).
        """
        left = [number for number in range(len(self._volumes)) if self._loaded(number) is None]
        if len(left) < len(self._volumes):
            done = f"{len(self._volumes) - len(left):,} of {len(self._volumes):,} parts"
            self._place.say(f"resuming an interrupted import: {done} were complete")
        self._write(left, {}, progress)
        while self._by_content and len(self._volumes) > 1:
            volumes = self._complete()
            taken = taken_before(self._place.folder, self._files, volumes)
            again = {number: own for number, own in taken.items() if own != dict(volumes[number].taken)}
            if not again:
                break
            self._place.say(f"giving equal records distinct names, in {len(again):,} of {len(volumes):,} parts")
            for number in again:
                self._place.forget(number)
            self._write(sorted(again), again, None)

    def finish(self, dest: Path, held_out: Sequence[tuple[int, str]], skip_broken: bool) -> None:
        """Makes a store of the volumes, and gives it its name.

        Raises:
            UserError: see `write_around`.
            OSError: if it cannot be written.
        """
        folder, volumes = self._place.folder, self._complete()
        left_out = [(entry.id, entry.reason) for entry in self._source.unread]
        write_around(folder, dest, self._form, self._key, volumes, held_out, skip_broken, left_out)
        name_directory(folder, dest)
        shutil.rmtree(dest / self._place.notes.name, ignore_errors=True)

    def _write(self, numbers: Sequence[int], taken: dict[int, dict[str, int]], progress: Progress | None) -> None:
        known = {number: volume.met for number in range(len(self._volumes)) if (volume := self._loaded(number)) is not None}
        jobs = [
            Job(
                self._place.volume(number),
                self._place.folder / self._files[number],
                tuple(self._source.pieces[piece] for piece in self._volumes[number]),
                self._form,
                self._key,
                self._access.elsewhere(),
                self._by_content,
                self._source.named,
                taken.get(number, {}),
            )
            for number in numbers
        ]

        def told(which: int, done: int) -> None:
            known[numbers[which]] = done
            if progress is not None:
                progress(sum(known.values()), self._source.total)

        for which, met in self._place.processes.each(write_volume, jobs, told):
            told(which, met)

    def _loaded(self, number: int) -> Volume | None:
        return Volume.load(self._place.volume(number))

    def _complete(self) -> list[Volume]:
        return [volume for number in range(len(self._volumes)) if (volume := self._loaded(number)) is not None]
