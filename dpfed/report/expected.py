"""A forecast or a rehearsal beside the results."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.errors import UserError
from dpfed.files.reading import read_text
from dpfed.privacy.promise import round_up
from dpfed.report.results import headlines, results_of, shown

if TYPE_CHECKING:  # whoever has a run makes one
    from dpfed.artifacts.view import RunView

_HOW = "expected what `dpfed forecast CONFIG --json` or `dpfed rehearse CONFIG --json` prints"


@dataclass(frozen=True)
class Expected:
    """What was said before a run, beside the run.

    Attributes:
        verdict: the forecast's, in its own words; empty where a row has it.
        rows: what, as forecast, and as it came.
    """

    verdict: str
    rows: tuple[tuple[str, str, str], ...]

    @classmethod
    def read(cls, path: Path, run: RunView) -> Expected:
        """Reads the JSON of a forecast or of a rehearsal.

        Raises:
            UserError: for a file that is neither, or a forecast for another number of records or another epsilon.
        """
        try:
            return cls(*_read(json.loads(read_text(path)), run, path))
        except OSError as error:
            raise UserError(f"cannot read the forecast {path}: {error.strerror or error}.") from error
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise UserError(f"{path} is not a forecast ({type(error).__name__}: {error}): {_HOW}.") from error


def _read(said: dict[str, Any], run: RunView, path: Path) -> tuple[str, tuple[tuple[str, str, str], ...]]:
    first = next(iter(headlines(run.table, 1)), None)
    came = "–" if first is None else f"{shown(first.untrained)} → {shown(first.trained)}"
    if first is not None and first.change:
        came += f" ({first.difference})"
    name = "Evaluation" if first is None else first.label
    verdict = str(said["verdict"])
    if "tried" in said:  # of a rehearsal
        _same(path, run, said)
        best = {one["name"]: one for one in said["tried"]}[said["best"]]
        rehearsed = next((item for item in results_of(best["evaluations"]) if first and item.name == first.name), None)
        if rehearsed is None:
            return verdict, ((name, "not measured", came),)
        before, after = shown(rehearsed.untrained), shown(rehearsed.trained)
        return verdict, ((f"{name}, rehearsed on public records", f"{before} → {after}", came),)
    if ("rows" in said) != run.closed_form:
        forecast, own = ("private moments", "another method") if "rows" in said else ("gradients", "private moments")
        raise UserError(
            f"{path} forecasts {forecast}, and this run is of {own}. Forecast this run: "
            f"`dpfed forecast {run.folder}/config.toml --json`."
        )
    of_plan = said["rows"][0] if "rows" in said else said  # of private moments, or of another method
    epsilon = ("Epsilon", _same(path, run, of_plan), round_up(run.epsilon))
    if "rows" in said:
        return verdict, (epsilon, (name, f"about {_number(of_plan['kept']):.0%} of the heads' gain without noise", came))
    row = said["configured"]
    expected = None if row["noise_over_gradient"] is None else _number(row["noise_over_gradient"])
    noise = ("Noise, in lengths of the gradient", _times(expected), _times(run.noise_over_gradient))
    steps, reach = _number(row["steps"]), _number(row["reach"])
    return "", (epsilon, noise, (name, f"{verdict}: {steps:,.0f} noisy steps do as much as {reach:,.0f} without noise", came))


def _number(value: Any) -> float:
    """A number of a file, which is finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"expected a number, got {value!r}")
    return value


def _same(path: Path, run: RunView, said: dict[str, Any]) -> str:
    """Epsilon of a forecast, in words; a forecast of another plan is refused."""
    records, epsilon = _number(said["records"]), _number(said["epsilon"])
    own, planned = run.results["privacy"].get("records"), run.target or run.epsilon
    if records != own or not math.isclose(epsilon, planned, rel_tol=0.05):
        raise UserError(
            f"{path} is of another plan ({records:,.0f} records, epsilon {round_up(epsilon)}); this run has {own} records and "
            f"a planned epsilon of {round_up(planned)}. Forecast this run: `dpfed forecast {run.folder}/config.toml --json`."
        )
    return round_up(epsilon)


def _times(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:,.1f} times"
