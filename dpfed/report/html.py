"""Writes a self-contained HTML file about a run, or about several runs side by side."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from dpfed.errors import UserError
from dpfed.paths import path_of
from dpfed.privacy.promise import round_up
from dpfed.report.card import table_rows
from dpfed.report.curves import training_note, training_plots
from dpfed.report.gallery import Gallery
from dpfed.report.ladder import ladder
from dpfed.report.plots import bar_chart, comparison_plot, epsilon_plot, map_plot, norm_plot, progress_plot
from dpfed.report.record_charts import EmbeddingMap
from dpfed.report.results import Result, headlines, label, shown, tied
from dpfed.report.style import inline_svg, palette, uri
from dpfed.report.timeline import TITLE as TIMELINE
from dpfed.report.timeline import sites_in, timeline_plot
from dpfed.report.view import RunView

PIXEL_ART = 64  # pictures smaller than this are enlarged with hard edges
NO_LOSS = (
    "There is no loss curve. The loss of a step is an exact function of the records that it drew, and epsilon does not cover "
    "it. These charts come from released sums or from the evaluation. diagnostics = 'private' releases a curve with noise."
)
CLOSED_FORM = (
    "Private moments have no loss: the heads follow in closed form from two noisy sums. These charts come from those sums or "
    "from the evaluation."
)
MAP_NOTE = (
    "Each dot is a public record, coloured by its class. t-SNE puts records with similar frozen features near each other. "
    "Only which colours lie together has a meaning, not the size of a group or the distance between groups."
)
CONFUSION_NOTE = (
    "The model saw the names of the classes and no labels. A row is a true class, a column is the class that the model chose, "
    "and a cell counts held-out public records. The framed cells are the right answers."
)
ERROR_BARS = (
    "± is the 95% interval over the draw of held-out records. The difference compares both models on the same records, and its "
    "± also covers the change that noise without any signal causes. “Within error” marks a difference that a run "
    "which learns nothing may show, too. The ± does not say how much trained models differ from run to run."
)


def write_report(path: str | Path, runs: Sequence[RunView], note: str = "") -> None:
    """Writes a report about one run, or a comparison of several.

    The file needs no other file: style and pictures are inside, there is no script, and all text from a run is escaped.

    Args:
        path: Path of the file.
        runs: Runs, at least one.
        note: Sentence above a comparison.

    Raises:
        UserError: If there are no runs, a run's card is not a privacy card, or the path cannot be written.
    """
    if not runs:
        raise UserError("a report needs at least one run, and `runs` is empty: give a RunView. [report-runs-missing]")
    values = _single(runs[0]) if len(runs) == 1 else _comparison(runs)
    try:
        path_of(path, "the report").write_text(_page().render(values, note=note), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the report {path}: {error.strerror or error}. [report-unwritable]") from error


def page_style() -> Markup:
    """Returns the style sheet of all pages. It is part of the report's template, and contains nothing of any run."""
    return Markup(palette() + _template().partition("{{ style }}")[2].partition("</style>")[0])  # noqa: S704


@functools.cache
def _page() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(shown=shown, picture=_picture, small=_small, style=page_style())
    return environment.from_string(_template())


@functools.cache
def _template() -> str:
    return resources.files("dpfed.report").joinpath("template.html").read_text(encoding="utf-8")


def _single(run: RunView) -> dict:
    table = run.table
    first = headlines(table, 4)
    plots: list[tuple[str, Figure]] = []
    # Epsilon of a voided run is an accountant's figure, not privacy spent: a curve would look like a promise.
    if run.spent and not run.void:
        target = [] if run.target is None else [(0, run.target), (run.spent[-1][0], run.target)]
        plots.append(("Privacy spent: epsilon over steps", epsilon_plot(run.spent, target)))
    measured = {item["step"] for item in run.evaluations if item["model"] == "trained"}
    if first and len(measured) > 1:
        plots.insert(0, ("Evaluation over steps", progress_plot(run.evaluations, [item.name for item in first])))
    norms = [(item["step"], item["noisy_gradient_norm"]) for item in run.metrics if item.get("noisy_gradient_norm")]
    if len(norms) > 2 and run.noise_norm is not None:
        plots.append(("Gradient with its noise (blue), noise alone (orange)", norm_plot(norms, run.noise_norm)))
    if sites_in(run.steps_of_sites):
        plots.append((TIMELINE, timeline_plot(run.steps_of_sites)))
    if table:
        tall = len(plots) == 2
        chart = bar_chart(table[: 12 if tall else 6], tall)
        guessed = ", chance (orange)" if any(item.chance is not None for item in table) else ""
        start = table_rows(run.card_markdown).get("Trained", "").partition("starting weights: ")[2]
        before = "before training" if start in ("", "random") else f"starting weights {start} alone"
        plots.insert(0, (f"Held-out records: trained (blue), {before} (grey){guessed}", chart))
    marks = run.marks
    gallery = run.gallery or Gallery(())
    return {
        "title": run.name,
        "runs": [run],
        "run": run,
        "training": _drawn(training_plots(run.windows, run.clip_norm)),
        "training_note": training_note(run.windows, run.void),
        "tiles": _tiles(run, first),
        "groups": _groups(table),
        "plots": _drawn(plots),
        "card": card_html(run.card_markdown),
        "marks": marks,
        "about": run.about,
        "no_loss": "" if run.windows else CLOSED_FORM if run.closed_form else NO_LOSS,
        "error_bars": ERROR_BARS,
        "maps": _drawn(_maps(gallery.maps)),
        "map_note": MAP_NOTE,
        "confusions": gallery.confusions,
        "confusion_note": CONFUSION_NOTE,
    }


def _maps(maps: Sequence[EmbeddingMap]) -> list[tuple[str, Figure]]:
    """Draws two charts for each label, before and after training, or one chart if only the trained model is known."""
    plots = []
    for chart in maps:
        for when, points in (("before", chart.before), ("after", chart.after)):
            if points:
                plots.append((f"{when.capitalize()} training, by {chart.label}", map_plot(points, chart.classes, chart.names)))
    return plots


def _drawn(plots: list[tuple[str, Figure]]) -> list[tuple[str, Markup]]:
    return [(title, inline_svg(canvas, title)) for title, canvas in plots]


def _groups(table: list[Result]) -> list[tuple[str, str, list[Result]]]:
    """Groups results with the same measurement: (split, protocol, results)."""
    keys = dict.fromkeys((item.split, item.protocol) for item in table)
    return [(*key, [item for item in table if (item.split, item.protocol) == key]) for key in keys]


def _tiles(run: RunView, first: list[Result]) -> list[tuple[str, str, str]]:
    """Returns the figures at the top of a report: (name, value, remark)."""
    tiles = []
    if run.void:
        tiles.append(("Privacy", "none", "no guarantee holds"))
    else:
        tiles.append(("Epsilon spent", round_up(run.epsilon), f"delta {round_up(run.delta)}"))
    for item in first[:2]:
        remark = f"before {shown(item.untrained)}" if item.untrained is not None else item.split
        remark += f"; {item.difference}" if item.change else ""
        tiles.append((item.label, shown(item.trained), remark))
    if run.metrics:
        remark = "noisy steps" if run.noisy else "without noise"
        tiles.append(("Steps", f"{max(item['step'] for item in run.metrics):,}", remark))
    return tiles


def _comparison(runs: Sequence[RunView]) -> dict:
    if len({run.name for run in runs}) < len(runs):  # runs of one configuration are named by their folders
        runs = [dataclasses.replace(run, name=Path(run.folder).name) for run in runs]
    tables = [{item.name: item for item in run.table} for run in runs]
    names = list(dict.fromkeys(name for table in tables for name in table))
    union = [next(table[name] for table in tables if name in table) for name in names]
    first = headlines(union, 1)
    plots = []
    if first:
        metric = first[0].name
        names_of_runs = [f"{run.name} ({'no guarantee' if run.void else 'epsilon ' + round_up(run.epsilon)})" for run in runs]
        chart = comparison_plot(names_of_runs, [table.get(metric) for table in tables], [run.void for run in runs])
        plots.append((f"{label(metric)}: after (bar) and before training (orange line)", chart))
    rungs = ladder(runs, [table.get(first[0].name) for table in tables]) if first else []
    rows = []
    for run, table in zip(runs, tables, strict=True):
        privacy = ("none", "no guarantee") if run.void else (round_up(run.epsilon), round_up(run.delta))
        rows.append((run, *privacy, [table.get(name) for name in names]))
    # A run without a guarantee is not a winner: it bought its figures with the records' privacy.
    fair = [{} if run.void else table for run, table in zip(runs, tables, strict=True)]
    marks = [_marks([table.get(name) for table in fair]) for name in names]
    return {
        "title": f"Comparison of {len(runs)} runs",
        "runs": list(runs),
        "columns": [(name, label(name)) for name in names],
        "rows": rows,
        "marks": marks,
        "plots": _drawn(plots),
        "ladder": (label(first[0].name), rungs) if first else None,
        "error_bars": ERROR_BARS,
    }


def _marks(row: list[Result | None]) -> list[str]:
    """Returns ``best``, ``near`` (the difference from the best may be chance) or an empty string for each run.

    If fewer than two runs have a figure, all strings are empty.
    """
    measured = {item.trained: item for item in row if item is not None and item.trained is not None}
    if sum(item is not None and item.trained is not None for item in row) < 2:
        return [""] * len(row)
    top = measured[max(measured)]
    return [
        "" if item is None or item.trained is None else "best" if item.trained == top.trained else "near" * tied(top, item)
        for item in row
    ]


def card_html(text: str) -> Markup:
    """Converts a privacy card to HTML, without its title."""
    # Raw HTML, links and pictures stay text: a card needs none, and a report must not link anywhere.
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink"])
    return Markup(renderer.render(text.partition("\n")[2]))  # noqa: S704  markdown-it escapes all text


def _picture(png: bytes) -> str:
    return uri(png, "image/png")


def _small(png: bytes) -> bool:
    with Image.open(io.BytesIO(png)) as image:
        return max(image.size) < PIXEL_ART
