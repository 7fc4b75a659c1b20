"""Prints a run's output to the terminal: progress with the time left, and a table of results at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

import dpfed
from dpfed.console import logs
from dpfed.data.reasons import visible
from dpfed.progress import Progress, Throughput, duration

if TYPE_CHECKING:  # torch takes seconds to import, and half of the commands do not need it
    from dpfed.artifacts.directory import RunDirectory
    from dpfed.config import Config
    from dpfed.evaluation.measured import Evaluation

console = Console()
beside = Console(stderr=True)  # for messages beside a command's output, such as progress if the output is JSON
_LINE_EVERY = 15.0  # seconds between two lines of progress if the output is not a terminal


def chosen_config(given: Path, assignments: list[str] | None) -> Config:
    """Reads the configuration that a command was given, and prints a line if dpfed ships it.

    Args:
        given: Path of the file, or name of a shipped configuration.
        assignments: Values of ``--set``; ``None``: none.

    Raises:
        UserError: If the configuration is wrong, see `load_config`.
    """
    from dpfed.config import load_config

    config = load_config(given, assignments or ())
    say_if_shipped(given)
    return config


def on_command_line(given: Path | str, options: Iterable[tuple[str, str | None]]) -> str:
    """Returns a configuration and the given options as words of a command line, to suggest the next command.

    Args:
        given: Path or name of the configuration.
        options: Pairs of an option's name and its value; ``None``: the option was not given.
    """
    return shlex.join([str(given), *(text for pair in options if pair[1] is not None for text in pair if text is not None)])


def say_if_shipped(given: Path) -> None:
    """Prints a line to stderr if a name stands for a shipped file, because the user may have meant a file of their own."""
    from dpfed.files.shipped import shipped_name

    if name := shipped_name(given):
        text = f"{name}: as shipped with dpfed {dpfed.__version__}"
        logs.write("say", text=text) if logs.active() else print(text, file=sys.stderr, flush=True)


def say(text: str, beside_output: bool = False) -> None:
    """Prints a line about the current work at once: at a command's start, before imports that take seconds.

    Args:
        text: The line.
        beside_output: Whether the command's output is for a program or a file, so that the line goes to stderr.
    """
    if logs.active():
        return logs.write("say", text=visible(text))
    (beside if beside_output else console).print(f"[dim]{escape(visible(text))}[/]", highlight=False, soft_wrap=True)


class TerminalProgress(Progress):
    """A `Progress` that shows the stages of a run as progress bars. `watching` makes an instance."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    def stage(self, name: str, total: int | None) -> Callable[[int], None]:
        """See `Progress`."""
        if not draws(self._bars.console):
            return _lines(self._bars.console, name, total)
        throughput = Throughput()
        task = self._bars.add_task(name, total=total, throughput=throughput)

        def advance(done: int) -> None:
            throughput.see(done, time.monotonic())
            self._bars.update(task, completed=done)

        return advance

    def note(self, text: str) -> None:
        """See `Progress`."""
        self._bars.console.print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True)

    def on_evaluation(self, figures: list[Evaluation]) -> None:
        """Prints the two most important figures; the report has all. See `Callback`."""
        from dpfed.report.results import most_telling

        values = escape(", ".join(f"{figure.name} {100 * figure.value:.1f} %" for figure in most_telling(figures, 2)))
        if figures:
            when = f"after step {figures[0].step}" if figures[0].step else "before training"
            self._bars.console.print(f"[dim]{when}:[/] {values}", highlight=False, soft_wrap=True)


def draws(out: Console) -> bool:
    """Returns whether bars can be drawn: in a terminal, and in a notebook that has ipywidgets."""
    return out.is_terminal or (out.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


def _lines(out: Console, name: str, total: int | None) -> Callable[[int], None]:
    """Shows a stage's progress where no bar can be drawn, as in a job's log: a line at the start, and others now and then."""
    if total:
        out.print(f"[dim]{escape(name)}: {total}[/]", highlight=False, soft_wrap=True)
    started = last = time.monotonic()
    throughput = Throughput()

    def advance(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        throughput.see(done, now)
        if now - last < _LINE_EVERY:
            return
        last = now
        left = f", {_times(throughput, total - done, now - started)}" if total else ""
        out.print(f"{name}: {done} of {total}{left}" if total else f"{name}: {done} so far", highlight=False, soft_wrap=True)

    return advance


def _times(throughput: Throughput, steps: float, so_far: float) -> str:
    left = throughput.left(math.ceil(steps))
    return f"{f'about {duration(left)} left, ' if left else ''}{duration(so_far)} so far"


class _Times(ProgressColumn):
    """A column of a progress bar, with the time left and the time so far."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Returns the column's text."""
        return Text(_times(task.fields["throughput"], task.remaining or 0, task.elapsed or 0.0), style="progress.remaining")


@contextlib.contextmanager
def watching(as_json: bool = False) -> Iterator[TerminalProgress | logs.JsonProgress]:
    """Yields a `Progress`: it draws bars in a terminal, prints a line now and then elsewhere, or writes JSON lines to the log.

    Args:
        as_json: Whether stdout is for JSON only, so that the progress goes to stderr.
    """
    if logs.active():
        yield logs.JsonProgress()
        return
    out = beside if as_json else console
    columns = (TextColumn("{task.description:>14}"), BarColumn(bar_width=32), MofNCompleteColumn(), _Times())
    with Bars(*columns, console=out, disable=not draws(out)) as bars:
        yield TerminalProgress(bars)


def show_run(run: RunDirectory) -> None:
    """Prints the results of a run: the guarantee, the figures before and after training, and the paths of its files."""
    from dpfed.artifacts.view import results_in
    from dpfed.privacy.promise import large_delta, meaning, protected_by, round_up
    from dpfed.report.card import lead
    from dpfed.report.results import results_of, shown

    results = results_in(run.results)
    privacy = results["privacy"]
    page = run.no_card if run.no_card.exists() else run.card
    if privacy["guarantee"]:
        protected = protected_by(privacy.get("unit", "record"))
        promise = (
            f"epsilon {round_up(privacy['epsilon'])}, delta {round_up(privacy['delta'])} ({privacy['accountant'].upper()})"
            + (", for all records of a unit" if protected == "unit" else "")
        )
        warning = large_delta(privacy["delta"], privacy["records"], protected)
        words = " ".join([warning, meaning(privacy["epsilon"], privacy["delta"], protected, "what this run released")]).strip()
    else:
        promise, words = "[bold red]no guarantee[/]", lead(page.read_text(encoding="utf-8"))
    console.print(f"[bold]{escape(results['name'])}: {promise}[/]", highlight=False, soft_wrap=True)
    console.print(escape(words), highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for result in results_of(results["evaluations"]):
        before = shown(result.untrained, result.untrained_interval)
        after = shown(result.trained, result.trained_interval)
        table.add_row(escape(result.name), before, after, result.difference)
    if table.rows:  # else nothing was measured
        console.print(table)
    card = ("privacy card" if privacy["guarantee"] else "no guarantee", page)
    for name, path in (("model", run.model), ("report", run.report), card):
        console.print(f"[dim]{name:>12}[/]  {path}", highlight=False, soft_wrap=True)
