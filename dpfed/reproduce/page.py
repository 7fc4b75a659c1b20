"""The page and the tables of an experiment, in words and numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from dpfed.privacy.promise import round_up
from dpfed.report.html import ERROR_BARS, page_style
from dpfed.report.results import label
from dpfed.report.style import inline_svg, png_bytes
from dpfed.reproduce.charts import charts
from dpfed.reproduce.outcome import Mechanism, Outcome, Row


@dataclass(frozen=True)
class Line:
    """A run in a table: its name, its epsilon and one figure for each metric."""

    name: str
    epsilon: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class MechanismWords:
    """A method in a table."""

    method: str
    title: str
    words: str
    sensitivity: str
    noise: str
    epsilon: str
    seconds: str
    cost: str


def write(outcome: Outcome) -> dict[str, Path]:
    """Writes ``results.csv``, ``chart-1.png`` and so on, and ``page.html``; what is there from before is replaced.

    Returns:
        The files by what they are.
    """
    request = outcome.request
    folder = request.out / request.name
    folder.mkdir(parents=True, exist_ok=True)
    files = {"figures": folder / "results.csv", "page": folder / "page.html"}
    outcome.write_csv(files["figures"])
    drawn = charts(outcome)
    for number, canvas in enumerate(drawn.values(), start=1):
        files[f"chart {number}"] = folder / f"chart-{number}.png"
        files[f"chart {number}"].write_bytes(png_bytes(canvas))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("dpfed.reproduce").joinpath("page.html").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        title=request.experiment.title,
        name=request.experiment.name,
        data=request.data.name,
        scale=request.scale,
        note=outcome.scale,
        style=page_style(),
        plots=[(heading, inline_svg(canvas, heading)) for heading, canvas in drawn.items()],
        compared=compared(outcome),
        metrics=[(metric, label(metric)) for metric in request.data.metrics],
        lines=lines(outcome),
        mechanisms=mechanisms(outcome),
        timed=request.experiment.timed,
        promise=outcome.promise,
        runs=list(outcome.runs.values()),
        figure=figure,
        signed=signed,
        error_bars=ERROR_BARS,
    )
    files["page"].write_text(text, encoding="utf-8")
    return files


def compared(outcome: Outcome) -> bool:
    """Whether the paper has any of the figures."""
    return any(row.published is not None for row in outcome.rows)


def lines(outcome: Outcome) -> list[Line]:
    """The figures, a line for each run of the experiment."""
    width = len(outcome.request.data.metrics)
    chunks = [tuple(outcome.rows[start : start + width]) for start in range(0, len(outcome.rows), width)]
    return [Line(_named(rows[0], outcome), _promise(rows[0].epsilon), rows) for rows in chunks]


def mechanisms(outcome: Outcome) -> list[MechanismWords]:
    """The methods, in words."""
    return [
        MechanismWords(
            item.method,
            item.title,
            _soundness(item),
            _number(item.sensitivity),
            _number(item.noise),
            "none" if item.epsilon is None else round_up(item.epsilon),
            _number(item.seconds),
            "" if item.cost is None else f"{item.cost:.2f} x",
        )
        for item in outcome.mechanisms
    ]


def figure(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """A figure in percent, and how far it may be off."""
    if value is None:
        return "–"
    most = interval and max(interval[1] - value, value - interval[0])
    return f"{value:.1f}" + ("" if most is None else f" ± {math.ceil(round(10 * most, 9)) / 10:.1f}")


def signed(value: float | None) -> str:
    """A difference in points."""
    return "–" if value is None else f"{value:+.1f}".replace("-", "−")


def _named(row: Row, outcome: Outcome) -> str:
    return row.name if row.x is None else f"{row.name}, {outcome.request.experiment.axis} = {row.x:g}"


def _promise(epsilon: float) -> str:
    return "none" if math.isinf(epsilon) else round_up(epsilon)


def _soundness(item: Mechanism) -> str:
    if item.sensitivity is None:
        return "no privacy"
    return "yes" if item.sound else "no"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
