"""The page's HTML. Whatever comes from a run is escaped; the page loads nothing but its own style and script."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dpfed.data.reasons import visible
from dpfed.live.charts import charts_of, comparison_of, training_of
from dpfed.live.figures import Figure, figures, overview
from dpfed.live.scan import Seen, at_work_first
from dpfed.live.state import RunState
from dpfed.progress import duration
from dpfed.report.curves import training_note
from dpfed.report.html import card_html, page_style
from dpfed.report.results import label, shown

_TILES = ("steps_done", "seconds_left", "epsilon_spent", "evaluation")
_BESIDE = (
    "up",
    "steps_done",
    "steps_planned",
    "seconds_left",
    "epsilon_spent",
    "epsilon_planned",
    "evaluation",
)
_LAST = 20  # discarded steps that are listed


class Pages:
    """Renders views of runs. Charts are drawn again only where their run has changed."""

    def __init__(self, place: str, several: bool = True) -> None:
        """Takes the name of what is shown, and whether it is a folder of runs or a single one."""
        self._place = place
        self._charts: dict[str, tuple[tuple[RunState, ...], list[tuple[str, Markup]]]] = {}
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
        """A whole page.

        Args:
            title: of the page.
            live: address of its events; empty: it does not change.
            body: its part that changes.
            beside: what stays as it is, such as a form that somebody fills in.
        """
        return self._render("frame.html", title=title, live=live, body=body, beside=beside or "")

    def runs(self, seen: Sequence[Seen]) -> Markup:
        """The list of runs."""
        rows = [(one, {figure.key: figure for figure in reversed(overview(one))}) for one in at_work_first(seen)]
        return Markup(self._render("runs.html", rows=rows, place=self._place))  # noqa: S704  the template escapes

    def run(self, seen: Seen) -> Markup:
        """One run."""
        if seen.run_state is None:
            return Markup(self._render("damaged.html", seen=seen))  # noqa: S704
        one, made = seen.run_state, figures(seen)
        values: dict[str, Any] = {
            "tiles": _tiles(made),
            "figures": [figure for figure in made if figure.key not in _BESIDE and "site" not in figure.labels],
            "charts": self._drawn(f"run {seen.name}", [one], lambda: charts_of(one)),
            "training": self._drawn(f"training {seen.name}", [one], lambda: training_of(one)),
            "training_note": training_note(one.phases, not one.promises),
            "groups": _groups(one),
            "awaited": one.awaited[1].awaited if one.awaited else [],
            "most": next((figure.shown for figure in made if figure.key == "sites_awaited_seconds"), ""),
            "discarded": one.discarded[-_LAST:][::-1],
            "card": card_html(one.card) if one.card else "",
        }
        return Markup(self._render("run.html", seen=seen, run=one, **values))  # noqa: S704

    def comparison(self, seen: Sequence[Seen]) -> Markup:
        """Several runs side by side."""
        runs = [one.run_state for one in seen if one.run_state is not None]
        tables = [{(figure.key, *figure.labels.values()): figure for figure in figures(one)} for one in seen if one.run_state]
        rows = dict.fromkeys(key for table in tables for key, figure in table.items() if "site" not in figure.labels)
        names = [(key, next(table[key].label for table in tables if key in table)) for key in rows]
        names = [
            (key, name)
            for key, name in names
            if key[0] not in ("steps_planned", "epsilon_planned", "last_step_timestamp_seconds")
        ]
        charts = self._drawn("comparison " + " ".join(one.name for one in runs), runs, lambda: comparison_of(runs))
        return Markup(self._render("comparison.html", runs=runs, tables=tables, names=names, charts=charts))  # noqa: S704

    def search(self, name: str, query: str, answers: Sequence[str], trouble: str, searched: int) -> Markup:
        """Search by text: the form, and the pictures that were found, as ``data:`` addresses."""
        made = self._render("search.html", name=name, query=escape(query), answers=answers, trouble=trouble, searched=searched)
        return Markup(made)  # noqa: S704

    def refusal(self, sentence: str) -> str:
        """A page that says why there is nothing to see."""
        return self.page("dpfed", "", Markup(self._render("refusal.html", sentence=sentence)))  # noqa: S704

    def _drawn(
        self, key: str, runs: Sequence[RunState], draw: Callable[[], list[tuple[str, Markup]]]
    ) -> list[tuple[str, Markup]]:
        kept = self._charts.get(key)
        if kept is None or len(kept[0]) != len(runs) or any(old is not new for old, new in zip(kept[0], runs, strict=True)):
            kept = self._charts[key] = (tuple(runs), draw())
        return kept[1]

    def _render(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(values)


@cache
def style() -> str:
    """The style sheet: that of the reports, and what only this page has."""
    return str(page_style()) + resources.files("dpfed.live").joinpath("page/live.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """The script, which puts what the server sends in the place of what was there."""
    return resources.files("dpfed.live").joinpath("page/live.js").read_text(encoding="utf-8")


def _said(value: Any) -> Any:
    """What a template says, and what a browser can be sent: no half of a surrogate pair; a number keeps its percent sign."""
    return "\n".join(map(visible, value.split("\n"))).replace(" %", "\N{NO-BREAK SPACE}%") if type(value) is str else value


def _tiles(made: Sequence[Figure]) -> list[tuple[str, str, str]]:
    """Name, number, remark."""
    tiles = []
    for figure in (figure for key in _TILES for figure in made if figure.key == key):
        if figure.value is None:
            tiles.append((figure.label, "–", figure.shown))
            continue
        number, apart, remark = (re.split("( of | ± |, )", figure.shown, maxsplit=1) + ["", ""])[:3]
        tiles.append((figure.label, number.removeprefix("about "), f"{apart.strip(', ')} {remark}".strip()))
    return tiles[:5]


def _groups(one: RunState) -> list[tuple[str, str, list]]:
    table = one.table
    keys = dict.fromkeys((item.split, item.protocol) for item in table)
    return [(*key, [item for item in table if (item.split, item.protocol) == key]) for key in keys]
