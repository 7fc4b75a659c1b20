"""Renders the live page's HTML. All text from a run is escaped; the page loads only its own style sheet and script."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure as Canvas

from dpfed.data.reasons import visible
from dpfed.live.figures import Figure, figures, overview
from dpfed.live.scan import Seen, at_work_first
from dpfed.live.state import RunState
from dpfed.progress import duration
from dpfed.report.curves import training_note, training_plots
from dpfed.report.html import card_html, page_style
from dpfed.report.plots import epsilon_plot, norm_plot, progress_plot
from dpfed.report.results import headlines, label, shown
from dpfed.report.style import inline_svg

_TILES = ("steps_done", "seconds_left", "epsilon_spent", "evaluation")
_BESIDE = ("up", "steps_done", "steps_planned", "seconds_left", "epsilon_spent", "epsilon_planned", "evaluation")
_DRAWING = threading.Lock()  # matplotlib's fonts are shared by threads
_LAST = 20  # number of discarded steps that are listed


class Pages:
    """Renderer of the views of runs. It draws the charts of a run again only if the run has changed.

    Args:
        name: Name of the watched folder.
        several: Whether the folder holds several runs, and is not a run itself.
    """

    def __init__(self, name: str, several: bool = True) -> None:
        self._name = name
        self._charts: dict[str, tuple[RunState, list[tuple[str, Markup]]]] = {}
        self._environment = Environment(
            loader=PackageLoader("dpfed.live", "page"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_said,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(duration=duration, shown=shown, label=label, several=several)

    def page(self, title: str, live: str, body: Markup, beside: Markup | None = None) -> str:
        """Renders a whole page.

        Args:
            title: Title of the page.
            live: Address of the page's events; empty: the page does not change.
            body: Part of the page that changes.
            beside: Part of the page that does not change, such as a form that the reader fills in.
        """
        return self._render("frame.html", title=title, live=live, body=body, beside=beside or "")

    def runs(self, seen: Sequence[Seen], left_out: str = "") -> Markup:
        """Renders the list of runs, with a note about folders that were not searched."""
        rows = [(run, {figure.key: figure for figure in reversed(overview(run))}) for run in at_work_first(seen)]
        return Markup(self._render("runs.html", rows=rows, name=self._name, left_out=left_out))  # noqa: S704  the template escapes

    def run(self, seen: Seen) -> Markup:
        """Renders one run, or the reason why its files cannot be read."""
        if seen.run_state is None:
            return Markup(self._render("damaged.html", seen=seen))  # noqa: S704
        run, made = seen.run_state, figures(seen)
        table = run.table
        keys = dict.fromkeys((item.split, item.protocol) for item in table)
        values: dict[str, Any] = {
            "tiles": _tiles(made),
            "figures": [figure for figure in made if figure.key not in _BESIDE and "site" not in figure.labels],
            "charts": self._drawn(f"run {seen.name}", run, _charts_of),
            "training": self._drawn(f"training {seen.name}", run, _training_of),
            "training_note": training_note(run.windows, not run.has_guarantee),
            "groups": [(*key, [item for item in table if (item.split, item.protocol) == key]) for key in keys],
            "awaited": run.awaited[1].awaited if run.awaited else [],
            "most": next((figure.shown for figure in made if figure.key == "sites_awaited_seconds"), ""),
            "discarded": run.discarded[-_LAST:][::-1],
            "card": card_html(run.card) if run.card else "",
        }
        return Markup(self._render("run.html", seen=seen, run=run, **values))  # noqa: S704

    def search(self, name: str, query: str, answers: Sequence[str], trouble: str, searched: int) -> Markup:
        """Renders the search by text: the form, and the pictures that were found.

        Args:
            name: Name of the run.
            query: Text that was searched for; empty: nothing was searched yet.
            answers: Pictures found, as ``data:`` addresses.
            trouble: Reason why the search failed; empty: it did not fail.
            searched: Number of pictures that were searched.
        """
        made = self._render("search.html", name=name, query=escape(query), answers=answers, trouble=trouble, searched=searched)
        return Markup(made)  # noqa: S704

    def refusal(self, sentence: str) -> str:
        """Renders a page that says why it has no content."""
        return self.page("dpfed", "", Markup(self._render("refusal.html", sentence=sentence)))  # noqa: S704

    def _drawn(self, key: str, run: RunState, draw: Callable[[RunState], list[tuple[str, Canvas]]]) -> list[tuple[str, Markup]]:
        kept = self._charts.get(key)
        if kept is None or kept[0] is not run:
            with _DRAWING:
                kept = self._charts[key] = (run, [(title, inline_svg(canvas, title)) for title, canvas in draw(run)])
        return kept[1]

    def _render(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(values)


def _charts_of(run: RunState) -> list[tuple[str, Canvas]]:
    """Returns a run's charts with their titles."""
    drawn = []
    if run.spent and run.planned:
        drawn.append(("Epsilon over steps, against the plan", epsilon_plot(run.spent, run.expected, run.budget)))
    first = headlines(run.table, 4)
    if first and len({item["step"] for item in run.evaluations if item["model"] == "trained"}) > 1:
        drawn.append(("Utility over steps", progress_plot(list(run.evaluations), [item.name for item in first])))
    closed_form = run.plan is not None and run.plan.bounding.method.closed_form
    if len(norms := run.series("noisy_gradient_norm")) > 1 and not closed_form:
        drawn.append(("Norm of the noisy gradient", norm_plot(norms, None)))
    return drawn


def _training_of(run: RunState) -> list[tuple[str, Canvas]]:
    """Returns the charts of the released training metrics, with their titles."""
    fixed = run.plan is not None and run.plan.bounding.clipping == "fixed"
    return training_plots(run.windows, run.plan.bounding.clip_norm if fixed and run.plan else None)


@cache
def style() -> str:
    """Returns the style sheet: the style sheet of the reports, with the additions of the live page."""
    return str(page_style()) + resources.files("dpfed.live").joinpath("page/live.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Returns the script, which replaces the page's content with the content that the server sends."""
    return resources.files("dpfed.live").joinpath("page/live.js").read_text(encoding="utf-8")


def _said(value: Any) -> Any:
    """Returns a template's value for a browser: text without lone surrogates, and with no line break before a percent sign."""
    return "\n".join(map(visible, value.split("\n"))).replace(" %", "\N{NO-BREAK SPACE}%") if type(value) is str else value


def _tiles(made: Sequence[Figure]) -> list[tuple[str, str, str]]:
    """Returns the tiles at the top of a run's page: name, number and remark."""
    tiles = []
    for figure in (figure for key in _TILES for figure in made if figure.key == key):
        if figure.value is None:
            tiles.append((figure.label, "–", figure.shown))
            continue
        number, apart, remark = (re.split("( of | ± |, )", figure.shown, maxsplit=1) + ["", ""])[:3]
        tiles.append((figure.label, number.removeprefix("about "), f"{apart.strip(', ')} {remark}".strip()))
    return tiles[:5]
