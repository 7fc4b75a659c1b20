"""What a run looks like in a terminal: progress with time left, and a table at the end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:  # torch takes seconds to import, and half of the commands do without
    from dpfed.evaluation.suite import Evaluation
    from dpfed.run import RunDirectory

console = Console()


class TerminalWatcher:
    """Shows the stages of a run as progress bars. Use `watching`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Watcher`."""
        task = self._progress.add_task(name, total=total)
        return lambda done: self._progress.update(task, completed=done)

    def note(self, text: str) -> None:
        """See `Watcher`."""
        self._progress.console.print(f"[dim]{escape(text)}[/]", highlight=False)

    def evaluated(self, figures: list[Evaluation]) -> None:
        """See `Watcher`."""
        shown = [figure for figure in figures if "rank" not in figure.name]
        values = escape(", ".join(f"{figure.name} {figure.value:.3f}" for figure in shown))
        if figures:
            when = f"after step {figures[0].step}" if figures[0].step else "before training"
            self._progress.console.print(f"[dim]{when}:[/] {values}", highlight=False)


@contextlib.contextmanager
def watching() -> Iterator[TerminalWatcher]:
    """A watcher that draws on the terminal; without a terminal, only the lines of figures remain."""
    columns = (
        TextColumn("{task.description:>14}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield TerminalWatcher(progress)


def show_run(run: RunDirectory) -> None:
    """The short table at the end of a run: what was promised, what was learned, where things are."""
    from dpfed.report.card import round_up
    from dpfed.report.results import results_of

    results: dict[str, Any] = json.loads(run.results.read_text(encoding="utf-8"))
    privacy = results["privacy"]
    if privacy["guarantee"]:
        promise = (
            f"epsilon {round_up(privacy['epsilon'])}, delta {round_up(privacy['delta'])} ({privacy['accountant'].upper()})"
            + (", for all records of a unit" if privacy.get("unit") == "unit" else "")
        )
    else:
        reason = "trained without privacy" if privacy.get("method") == "none" else "the seed was fixed"
        promise = f"[bold red]no guarantee[/]: {reason}"
    table = Table(title=f"{results['name']}: {promise}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column, justify in (("", "left"), ("before", "right"), ("after", "right"), ("change", "right")):
        table.add_column(column, justify=justify)
    for result in results_of(results["evaluations"]):
        if "rank" not in result.name:
            table.add_row(escape(result.name), _number(result.untrained), _number(result.trained), result.difference)
    console.print(table)
    for name, path in (("model", run.model), ("report", run.report), ("privacy card", run.card)):
        console.print(f"[dim]{name:>12}[/]  {path}", highlight=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
