"""A user's request, from which dpfed chooses the other settings. This module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.config.reading import assigned
from dpfed.errors import UserError
from dpfed.files.toml_file import leaves
from dpfed.paths import local_path


@dataclass(frozen=True)
class Request:
    """A user's request: a data set, an epsilon, and the settings that the user chose.

    Attributes:
        data: Path of a folder, a table, another file that an importer reads, or a record store.
        epsilon: Epsilon of the guarantee.
        delta: Delta of the guarantee; ``None``: 1/(N ln N), with N training records (or protected units).
        model: Name of a model, see `dpfed.automatic.towers.given_towers`; ``None``: dpfed chooses.
        method: Name of the bounding method; ``None``: dpfed chooses.
        minutes: Longest training time on this machine, minutes; a plan that cannot be so short is refused. ``None``: the plan
            is shortened to 20 minutes if it can be.
        batch: B, expected number of records (or protected units) in a step; ``None``: dpfed chooses.
        steps: T, number of steps; ``None``: dpfed chooses.
        public: Path of a public record store, for public contrast; other methods do not use it. ``None``: there is none.
        assignments: Further settings, each ``section.key=value``.
    """

    data: str | Path
    epsilon: float
    delta: float | None = None
    model: str | None = None
    method: str | None = None
    minutes: float | None = None
    batch: int | None = None
    steps: int | None = None
    public: str | Path | None = None
    assignments: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of the run: the key ``name`` if the user set it, otherwise the last part of the data set's path."""
        named = leaves(assigned(self.assignments)).get("name")
        return named if isinstance(named, str) and named else name_from(local_path(self.data, "data"))

    def given(self) -> dict[str, Any]:
        """Returns the values of the keys that the user set, by dotted key; a key whose value is ``None`` gets its default.

        Raises:
            UserError: If a number is impossible, an assignment is malformed, or a key (or the data set) is set twice.
        """
        self._refuse_numbers()
        keys = leaves(assigned(self.assignments))
        keys |= {key.strip(): None for key, _, text in (item.partition("=") for item in self.assignments) if not text.strip()}
        options = {
            "privacy.epsilon": ("--epsilon", self.epsilon),
            "privacy.delta": ("--delta", self.delta),
            "bounding.method": ("--method", self.method),
            "privacy.batch": ("--batch", self.batch),
            "privacy.steps": ("--steps", self.steps),
        }
        for key, (option, value) in options.items():
            if value is not None and key in keys:
                raise UserError(f"{option} and --set {key} give one key two values: leave one out. [automatic-twice]")
            if value is not None:
                keys[key] = value
        for key in ("data.source", "data.path"):
            if key in keys:
                raise UserError(f"--data already names the data set: leave {key} out. [automatic-data-twice]")
        return keys

    def _refuse_numbers(self) -> None:
        """Refuses numbers that are wrong for every data set, before the import."""
        positive, whole = "a positive number", "a whole number, 1 or more"
        expected = {"epsilon": f"{positive}; 8 is usual, 1 strong", "delta": "a number above 0 and below 1/N"}
        expected |= {"minutes": positive, "batch": whole, "steps": whole}
        for name, what in expected.items():
            value = getattr(self, name)
            if value is None and name != "epsilon":
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
            if not number or (what is whole and value != int(value)) or (name == "delta" and value >= 1):
                raise UserError(f"{name} = {value!r}: expected {what}. [automatic-number]")


def name_from(path: Path) -> str:
    """Makes a valid run name from the last part of a path."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in path.stem).strip("-")
    return kept[:60] or "data"


def counts_of(text: str) -> list[int]:
    """Parses the numbers of records at the sites, such as ``3000,1200,800``.

    Raises:
        UserError: If the text is not a list of numbers with commas.
    """
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 13 for part in parts):
        raise UserError(
            f"--records {text}: expected whole numbers with commas between them, such as 3000,1200,800. [automatic-counts]"
        )
    return [int(part) for part in parts]
