"""Makes the terminal view of a run, or of a list of runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from dpfed.data.reasons import visible
from dpfed.live.figures import Figure, details, overview
from dpfed.live.scan import Seen, at_work_first
from dpfed.live.state import RunState
from dpfed.progress import duration

STYLES = {"running": "bold green", "stopped": "yellow", "finished": "bold blue", "damaged": "bold red"}
_WIDE, _REASONS = 60, 5
_LABELS = len("norm of the noisy gradient")
_MARKS = {"answered": ("■", "green"), "missed": ("·", "yellow"), "discarded": ("□", "red")}
_UNSEEN = frozenset(("steps_planned", "epsilon_planned"))  # they are shown beside the steps done and the epsilon spent


def fitted(shown: RenderableType, console: Console) -> RenderableType:
    """Returns a view cut to the terminal's height, with a line about the number of lines cut off."""
    lines = console.render_lines(shown, pad=False)
    if len(lines) <= console.height:
        return shown
    cut = max(1, console.height - 1)
    more = Text(f"{len(lines) - cut:,} more lines: use a taller window, or --once", "dim", no_wrap=True, overflow="crop")
    return Group(SegmentLines(lines[:cut], new_lines=True), more)


def view(seen: Sequence[Seen], single: bool, left_out: str = "") -> RenderableType:
    """Returns the view of runs, with the most important lines first, because a small terminal shows only the first lines.

    Args:
        seen: Runs.
        single: Whether a single run is watched, and not a folder of runs. `seen` is empty if that run was deleted or moved.
        left_out: Sentence about folders that were not searched; empty: all folders were searched.
    """
    if single:
        return _one(seen[0]) if seen else Text("The run was deleted or moved: watch its new folder.")
    return Group(_list(seen), *([_text(left_out, "yellow")] if left_out else []))


def _list(seen: Sequence[Seen]) -> RenderableType:
    if not seen:
        return Text("no run here yet")
    table = Table(box=None, pad_edge=False)
    for column in ("run", "", "steps", "time left", "epsilon", "utility"):
        table.add_column(column, overflow="fold")
    for run in at_work_first(seen):
        by = {figure.key: figure for figure in reversed(overview(run))}
        cells = [_text(by[key].shown) if key in by else "" for key in ("steps_done", "seconds_left", "epsilon_spent")]
        best = f"{by['evaluation'].label}: {by['evaluation'].shown}" if "evaluation" in by else run.trouble
        table.add_row(_text(run.name), Text(run.state, STYLES[run.state]), *cells, _text(best))
    return table


def _one(seen: Seen) -> RenderableType:
    run = seen.run_state
    if run is None:
        return Text.assemble((f"{visible(seen.name)}: damaged\n", STYLES["damaged"]), visible(seen.trouble))
    parts: list[RenderableType] = [
        Text.assemble((visible(run.title), "bold"), "  ", (seen.state, STYLES[seen.state]), (f"  {visible(run.kind)}", "dim"))
    ]
    if run.planned:
        bar = Table.grid()  # a bar on its own does not end its line
        bar.add_row(ProgressBar(total=run.planned, completed=min(run.done, run.planned), width=_WIDE))
        parts.append(bar)
    parts.append(_table(_rows(overview(seen))))
    if run.sites:
        parts.append(_sites(run))
    if run.discarded:
        parts.append(Text("discarded steps, which are charged:", "dim"))
        parts += [_text(f"  step {step}: {reason}") for step, reason in run.discarded[-_REASONS:]]
    guarantee = _text(run.guarantee, "" if run.has_guarantee or run.ledger is None else "bold red")
    parts.insert(len(parts) if run.has_guarantee else 1, guarantee)
    parts += [_text(f"Mark: {mark}", "yellow") for mark in run.marks]
    if rows := _rows(details(seen)):
        parts.append(_table(rows))
    if run.evaluations:
        parts.append(Text("Figures of evaluation are exact; epsilon does not cover them.", "dim"))
    return Group(*parts)


def _rows(made: Sequence[Figure]) -> list[tuple[str, str]]:
    return [(figure.label, figure.shown) for figure in made if figure.key not in _UNSEEN and "site" not in figure.labels]


def _table(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", style="dim", min_width=_LABELS)
    for label, words in rows:
        table.add_row(_text(label), _text(words))
    return table


def _sites(run: RunState) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("site", "answered", "missed", "last answer", "last steps"):
        table.add_column(column, justify="right" if column in ("answered", "missed") else "left")
    awaited = run.awaited[1].awaited if run.awaited else []
    for site in run.sites:
        took = "awaited" if site.name in awaited else "" if site.seconds is None else f"after {duration(site.seconds)}"
        past = Text.assemble(*(_MARKS[what] for what in site.past[-_WIDE // 2 :]))
        table.add_row(_text(site.name), f"{site.answered:,}", f"{site.missed:,}", took, past)
        if site.last_reason:
            table.add_row("", "", "", "", _text(site.last_reason, "dim"))
    return table


def _text(words: str, style: str = "") -> Text:
    """Returns text from a run's files without control characters, and with no line break before a percent sign."""
    return Text(visible(words).replace(" %", "%"), style)
