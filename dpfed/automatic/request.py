"""What a user gives when dpfed chooses the other settings. Nothing here imports torch."""

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
    """A data set, an epsilon, and the settings that the user chose.

    Attributes:
        data: a folder, a table, a file that an importer reads, or a record store.
        epsilon: of the guarantee.
        delta: of the guarantee; ``None``: 1/(N ln N).
        model: see `dpfed.automatic.towers`; ``None``: chosen.
        method: method of bounding; ``None``: chosen.
        minutes: longest training time on this machine; ``None``: 20.
        batch: B; ``None``: chosen.
        steps: T; ``None``: chosen.
        public: a public record store, for public contrast; ``None``: there is none.
        assignments: further ``section.key=value``.
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
        """The run's name, made from the data set's."""
        return name_from(local_path(self.data, "data"))

    def given(self) -> dict[str, Any]:
        """The keys that the user set, by dotted name; a key whose value is ``None`` gets its default.

        Raises:
            UserError: for an impossible number, a malformed assignment, or two options that set one key.
        """
        self._refuse_numbers()
        keys = leaves(assigned(self.assignments))
        keys |= {key.strip(): None for key, _, text in (one.partition("=") for one in self.assignments) if not text.strip()}
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
        """Refuses what no data set allows, before one is imported."""
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
    """Parses numbers of records, such as ``3000,1200,800``.

    Raises:
        UserError: for anything else.
    """
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 13 for part in parts):
        raise UserError(
            f"--records {text}: expected whole numbers with commas between them, such as 3000,1200,800. [automatic-counts]"
        )
    return [int(part) for part in parts]
