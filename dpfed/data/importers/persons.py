"""Finds persons in the paths of images: folders such as ``patient_001``, and file names such as ``sub-01_ses-2.png``.

A folder of a person is no class. The person is the unit of the images: a promise for one image says too little about a person
with several images.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

_PATIENT = "patient|paciente|paziente|pat|case"
_PERSON = "subject|subj|sub|person|participant|proband|volunteer|sujeto|sujet"
_FOLDER = re.compile(rf"({_PATIENT}|{_PERSON})[\s_.-]*([a-z]{{0,2}})(\d+)")
_FILE = re.compile(rf"({_PATIENT}|{_PERSON})[\s_-]*([a-z]{{0,2}})(\d+)(?=[\s_.-])")


@dataclass(frozen=True)
class Persons:
    """The persons that the paths of a data set name.

    Attributes:
        units: Person of each image, in the order of the paths; ``None``: the path names no person.
        unit_name: ``"patient"`` or ``"person"``.
        notice: Sentence for the user who imports.
    """

    units: Sequence[str | None]
    unit_name: str
    notice: str


def persons_of(paths: Sequence[PurePath]) -> Persons | None:
    """Finds the persons to whom images belong.

    ``patient_1`` and ``Patient 01`` are one person, wherever the folders lie: one person must not become two units.

    Args:
        paths: Paths of the images, relative to the folder that is imported.

    Returns:
        The persons; ``None`` if fewer than half of the paths name a person, or no person has several images.
    """
    named = [_person(path) for path in paths]
    images = Counter(person for person in named if person is not None)
    if 2 * images.total() < len(paths) or len(images) < 2 or images.most_common(1)[0][1] < 2:
        return None
    first = next(path for path, person in zip(paths, named, strict=True) if person is not None)
    name = "patient" if re.match(_PATIENT, next(iter(images))) else "person"
    alone = len(paths) - images.total()
    rest = f" {alone:,} {'images belong' if alone > 1 else 'image belongs'} to no {name}." if alone else ""
    notice = (
        f"The paths name {len(images):,} {name}s, as in {first.as_posix()}: the images of one {name} are one unit, and "
        f"a {name} is no class."
    )
    return Persons(named, name, notice + rest)


def names_a_person(folder: str) -> bool:
    """Returns whether the name of a folder is that of a person, such as ``patient_001``."""
    return _FOLDER.fullmatch(folder.casefold()) is not None


def _person(path: PurePath) -> str | None:
    found = [_FOLDER.fullmatch(folder.casefold()) for folder in path.parts[:-1]]
    found.append(_FILE.match(path.name.casefold()))
    return next((f"{word[1]} {word[2]}{int(word[3])}" for word in found if word), None)
