"""What all trackers do alike: rows of figures by step, the card and public pictures at the end, and nothing private.

A tracker gets what a step released, the figures of evaluation, the configuration without paths, the privacy card, and the
gallery, which exists for public records only. It opens no other file of a run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.callbacks.callback import Callback, RunInfo, StepSummary
from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.evaluation.measured import Evaluation

Rows = dict[int, dict[str, float]]  # figures by their names, by how many steps were done
_CARDS = ("no_privacy_card.md", "privacy_card.md")  # the first is there where no claim holds
_GALLERY, _INDEX = "gallery", "gallery.json"
# Where records lie, what the noise follows from, and a free text. Other values that are paths stay here, too.
_OPTIONS_OF_RECORDS = "data.options."  # arguments of a function of the user's own that opens the records
_KEPT_BACK = frozenset({"data.path", "data.stores", "public.path", "privacy.seed", "privacy.not_covered"})


@dataclass(frozen=True)
class Picture:
    """A picture of public records, as the report shows it.

    Attributes:
        path: of the PNG file.
        title: of the section of the report that it is in.
        text: under it.
    """

    path: Path
    title: str
    text: str


class Tracker(Callback):
    """Sends what a run releases to a tracker. A subclass says how.

    Evaluation figures wait for the next step, or for the end of the run: each row is then written once and whole, also of a run
    that is resumed.

    Args:
        every: steps between two rows; ``None``: as often as metrics.jsonl gets a line.

    Attributes:
        title: of the tracker, for messages.
        package: that it needs, as pip calls it.
        module: that is imported.
    """

    waits = True
    title = ""
    package = ""
    module = ""

    def __init__(self, every: int | None = None) -> None:
        self.every = every
        self._run: RunInfo | None = None
        self._waiting: list[Evaluation] = []
        self._last = 0
        self._import()

    def is_due(self, step: StepSummary) -> bool:
        """See `Callback`."""
        return bool(self._waiting) or super().is_due(step)

    def on_run(self, run: RunInfo) -> None:
        """See `Callback`."""
        self._run, self._waiting, self._last = run, [], run.done
        with self._accepting():
            self._open(run)

    def on_begin(self, done: int) -> None:
        """See `Callback`: a training that belongs to no run begins here."""
        if self._run is None:
            self.on_run(RunInfo("run", done))

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """See `Callback`."""
        self._waiting += figures

    def on_step(self, step: StepSummary) -> None:
        """See `Callback`."""
        rows = self._evaluated()
        rows.setdefault(step.done, {}).update(finite(step.scalars()))
        self._last = step.done
        with self._accepting():
            self._write(rows)

    def on_end(self) -> None:
        """See `Callback`."""
        folder = None if self._run is None else self._run.folder
        with self._accepting():
            if rows := self._evaluated():
                self._write(rows)
            if folder is not None:
                self._add(next((folder / name for name in _CARDS if (folder / name).is_file()), None), pictures(folder))
            self._close(finished=True)
        self._run = None

    def on_stop(self) -> None:
        """See `Callback`."""
        if self._run is not None:
            self._run = None
            self._close(finished=False)

    def _open(self, run: RunInfo) -> None:
        """Begins the tracker's own run, or takes it up."""
        raise NotImplementedError

    def _write(self, rows: Rows) -> None:
        """Writes rows in order. Those that an interrupted run wrote before must not appear twice."""
        raise NotImplementedError

    def _add(self, card: Path | None, shown: list[Picture]) -> None:
        """Adds card and pictures, after the last row."""
        raise NotImplementedError

    def _close(self, finished: bool) -> None:
        """Ends the tracker's own run, or leaves it to be resumed."""
        raise NotImplementedError

    def _import(self) -> Any:
        """The tracker's package.

        Raises:
            UserError: if it is missing.
        """
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise UserError(
                f"{self.title} needs the package {self.package}, which cannot be imported ({error}): pip install "
                f"{self.package}, or leave {self.title} out. [tracker-missing]"
            ) from error

    def _evaluated(self) -> Rows:
        rows: Rows = {}
        for figure in self._waiting:
            rows.setdefault(figure.step, {})[f"evaluation/{figure.name}"] = figure.value
        self._waiting = []
        return rows

    @contextlib.contextmanager
    def _accepting(self) -> Iterator[None]:
        """Says in one sentence what a tracker raises, whatever that is."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            remedy = f"no step is lost: resume the run, without {self.title} if need be"
            if self._run is None:
                remedy = f"nothing has begun: fix that, or leave {self.title} out"
            raise UserError(f"{self.title} cannot be used ({reason}); {remedy}. [tracker-refused]") from error


def finite(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures that a curve can have."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def sendable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration that a tracker may have: no path, no seed, no free text.

    Args:
        config: every key by its dotted name.
    """
    return {
        key: value
        for key, value in config.items()
        if key not in _KEPT_BACK
        and not key.startswith(_OPTIONS_OF_RECORDS)
        and value is not None
        and not any(map(_is_path, value if isinstance(value, list | tuple) else [value]))
    }


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    text = str(value).removeprefix("local-dir:")
    return text.startswith(("/", "~", "\\", "./", "../")) or ":\\" in text or "://" in text


def pictures(folder: Path) -> list[Picture]:
    """The pictures of a run's report; there are none unless its records are public.

    Args:
        folder: of the run.
    """
    index = folder / _GALLERY / _INDEX
    if not index.is_file():
        return []
    return [
        Picture(index.parent / tile["file"], section["title"], tile["text"] or strip["title"])
        for section in json.loads(index.read_text(encoding="utf-8"))
        for strip in section["strips"]
        for tile in strip["tiles"]
    ]
