"""The common part of all trackers: sends figures of steps and evaluations and, at the end, the card and public pictures.

A tracker receives the released figures of steps, the figures of evaluations, the configuration without paths, the privacy card,
and the gallery, which exists for public records only. It opens no other file of a run.
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

Rows = dict[int, dict[str, float]]  # figures by name, by number of finished steps
_CARDS = ("no_privacy_card.md", "privacy_card.md")  # the first exists if no privacy claim holds
_GALLERY, _INDEX = "gallery", "gallery.json"
# Keys that are not sent: locations of records, the seed of the noise, and a free text. Other values that are paths are
# not sent either (`sendable`).
_OPTIONS_OF_RECORDS = "data.options."  # arguments of the user's own function that opens the records
_KEPT_BACK = frozenset({"data.path", "data.stores", "public.path", "privacy.seed", "privacy.not_covered"})


@dataclass(frozen=True)
class Picture:
    """A picture of public records from the report.

    Attributes:
        path: Path of the PNG file.
        title: Title of the report's section with the picture.
        text: Caption of the picture.
    """

    path: Path
    title: str
    text: str


class Tracker(Callback):
    """Base class of callbacks that send a run's figures to a program such as MLflow; a subclass implements the sending.

    Evaluation figures are held back until the next step, or the end of the run. So each row is complete when it is written,
    and is written only once, even if the run is resumed.

    Args:
        every: Number of steps between two rows of figures; ``None``: the tracker gets a row whenever metrics.jsonl gets a line.

    Attributes:
        title: Name of the program, for messages.
        package: Name of the needed package, as pip knows it.
        module: Name of the module to import.

    Raises:
        UserError: If the package is missing, or `every` is less than 1.
    """

    waits = True
    title = ""
    package = ""
    module = ""

    def __init__(self, every: int | None = None) -> None:
        if every is not None and (not isinstance(every, int) or every < 1):
            raise UserError(
                f"every = {every!r} for {self.title}: expected a number of steps, at least 1, or None. [tracker-every]"
            )
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
        """See `Callback`. For a training without a run, the tracker's run begins here."""
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
        with self._accepting(over=True):
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
        """Begins or continues the run in the tracking program that holds the figures of dpfed's run."""
        raise NotImplementedError

    def _write(self, rows: Rows) -> None:
        """Writes rows in order. Rows that were written before an interruption must not appear twice."""
        raise NotImplementedError

    def _add(self, card: Path | None, shown: list[Picture]) -> None:
        """Adds the card (if the run has a card) and pictures, after the last row."""
        raise NotImplementedError

    def _close(self, finished: bool) -> None:
        """Ends the run in the tracking program, as finished or as interrupted."""
        raise NotImplementedError

    def _import(self) -> Any:
        """Imports and returns the tracker's module.

        Raises:
            UserError: If the package is missing.
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
    def _accepting(self, over: bool = False) -> Iterator[None]:
        """Turns any exception of the tracker's package into a `UserError` of one sentence.

        Args:
            over: Whether dpfed's run is finished: then a resumed run would not call the tracker again.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            remedy = f"no step is lost: resume the run, without {self.title} if need be"
            if self._run is None:
                remedy = f"nothing has begun: fix that, or leave {self.title} out"
            elif over:
                remedy = "the run is finished, and all its files are written; what was to be sent at its end may be missing"
            raise UserError(f"{self.title} cannot be used ({reason}); {remedy}. [tracker-refused]") from error


def finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures that are finite numbers, which a curve can show."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def sendable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys and values of a configuration that may be sent to a tracker.

    The result has no path, no seed, no reason (``privacy.not_covered``), no argument of a function that opens the records, and
    no key without a value.

    Args:
        config: Values of all keys by their dotted names.
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
    """Returns the pictures of a run's report; an empty list if the run's records are not public.

    Args:
        folder: Folder of the run.
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
