"""Finds persons in the paths of images: folders such as ``patient_001``, and file names such as ``sub-01_ses-2.png``.

A folder of a person is not a class. The person is the unit of the images: a guarantee for one image says too little about a
person with several images.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

_PATIENT = "patient|paciente|paziente|pat|case"
_PERSON = "subject|subj|person|participant|proband|volunteer|sujeto|sujet|sub(?=[_-])"
_NAMED = rf"({_PATIENT}|{_PERSON})[\s_.-]*([a-z]{{0,2}})(\d{{1,300}})"
_FOLDER, _FILE = re.compile(_NAMED), re.compile(_NAMED + r"(?=[\s_.-])")


@dataclass(frozen=True)
class Persons:
    """The persons that the paths of a data set name.

    Attributes:
        units: Person of each image, in the order of the paths; ``None``: no unit for this image.
        unit_name: ``"patient"`` or ``"person"``; ``None``: persons are not the units of this data set.
        notice: Sentence for the user who imports; empty if the paths name fewer than two persons, or no person with several
            images. It holds no path, because a path may tell who a person is.
    """

    units: Sequence[str | None]
    unit_name: str | None
    notice: str


def persons_of(paths: Sequence[PurePath]) -> Persons:
    """Finds the persons to whom images belong.

    ``patient_1`` and ``Patient 01`` are one person, wherever the folders lie: one person must not become two units. There
    are no units if fewer than half of the paths name a person, if the paths name fewer than two persons, or if no person has
    several images.

    Args:
        paths: Paths of the images, relative to the folder that is imported.
    """
    named = [_person(path) for path in paths]
    images = Counter(person for person in named if person is not None)
    nobody: list[str | None] = [None] * len(paths)
    if len(images) < 2 or max(images.values()) < 2:
        return Persons(nobody, None, "")
    word, alone = next(iter(images)).split()[0], len(paths) - images.total()
    name = "patient" if re.fullmatch(_PATIENT, word) else "person"
    found = f"{len(images):,} {name}s ('{word}' with a number) in the paths of {images.total():,} of {len(paths):,} images"
    if alone > images.total():
        return Persons(
            nobody,
            None,
            f"dpfed found {found}. Because most paths name no {name}, no {name} becomes a unit. If these are {name}s, import a "
            f"table with a column {name}_id.",
        )
    return Persons(
        named,
        name,
        f"dpfed found {found}: the images of one {name} are one unit, and a {name} is not a class. If these are not {name}s, "
        "rename the folders or files.",
    )


def names_a_person(folder: str) -> bool:
    """Returns whether the name of a folder is that of a person, such as ``patient_001``."""
    return _FOLDER.fullmatch(folder.casefold()) is not None


def _person(path: PurePath) -> str | None:
    found = [_FOLDER.fullmatch(folder.casefold()) for folder in path.parts[:-1]]
    found.append(_FILE.match(path.name.casefold()))
    return next((f"{word[1]} {word[2]}{int(word[3])}" for word in found if word), None)
