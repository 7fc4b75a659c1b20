"""A forecast or a rehearsal beside what came of it."""

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
            said = json.loads(read_text(path))
            rows = tuple(_rows(said, run, path))
            return cls("" if "configured" in said else str(said["verdict"]), rows)
        except OSError as error:
            raise UserError(f"cannot read the forecast {path}: {error.strerror or error}.") from error
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise UserError(f"{path} is no forecast ({type(error).__name__}: {error}): {_HOW}.") from error


def _rows(said: dict[str, Any], run: RunView, path: Path) -> list[tuple[str, str, str]]:
    first = next(iter(headlines(run.table, 1)), None)
    came = "–" if first is None else f"{shown(first.untrained, first.name)} → {shown(first.trained, first.name)}"
    if first is not None and first.change:
        came += f" ({first.difference})"
    name = "Evaluation" if first is None else first.label
    if "tried" in said:  # of a rehearsal
        best = {one["name"]: one for one in said["tried"]}[said["best"]]
        rehearsed = next((item for item in results_of(best["evaluations"]) if first and item.name == first.name), None)
        if rehearsed is None:
            return [(name, "not measured", came)]
        before, after = shown(rehearsed.untrained, rehearsed.name), shown(rehearsed.trained, rehearsed.name)
        return [(f"{name}, rehearsed on public records", f"{before} → {after}", came)]
    if "rows" in said:  # of private moments
        row = said["rows"][0]
        _same(path, run, row["records"], row["epsilon"])
        privacy = ("Epsilon", round_up(row["epsilon"]), round_up(run.epsilon))
        return [privacy, (name, f"about {row['kept']:.0%} of what the same heads reach without noise", came)]
    row = said["configured"]
    _same(path, run, said["records"], said["epsilon"])
    return [
        ("Epsilon", round_up(said["epsilon"]), round_up(run.epsilon)),
        ("Noise over gradient, by their lengths", _times(row["noise_over_gradient"]), _times(run.noise_over_gradient)),
        (name, f"{said['verdict']}: {row['steps']:,} noisy steps are worth {row['reach']:,.0f} without noise", came),
    ]


def _same(path: Path, run: RunView, records: int, epsilon: float) -> None:
    """Refuses a forecast of another plan."""
    own = run.results["privacy"]
    if int(records) != own.get("records") or not (run.target is None or math.isclose(epsilon, run.target, rel_tol=0.05)):
        raise UserError(
            f"{path} forecasts {int(records):,} records at epsilon {round_up(epsilon)}, and this run has "
            f"{own.get('records'):,} at a planned {round_up(run.target or run.epsilon)}: make the forecast of this run's own "
            "configuration, `dpfed forecast RUN/config.toml --json`."
        )


def _times(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:,.1f} times"
