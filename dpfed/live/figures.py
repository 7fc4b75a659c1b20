"""Collects a run's figures, each with its value and a text. Terminal, page and monitors all show these figures, so they agree.

For monitors, the module also returns the numbers in Prometheus's text format, and the health of all runs.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpfed.budgets.refusals import percent
from dpfed.live.scan import Seen
from dpfed.live.state import RunState
from dpfed.privacy.promise import round_up
from dpfed.progress import duration
from dpfed.report.results import headlines, shown

if TYPE_CHECKING:
    from prometheus_client import Metric


@dataclass(frozen=True)
class Figure:
    """A figure of a run.

    Attributes:
        key: Name for programs, such as ``epsilon_spent``; Prometheus's names begin with ``dpfed_``.
        label: Name for people.
        value: Value of the figure; ``None``: not known now.
        shown: Text that shows the value to people, often with a unit or a number to compare it with.
        help: Explanation in one line.
        labels: Labels that distinguish figures with the same key, such as those of several sites.
    """

    key: str
    label: str
    value: float | None
    shown: str
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)


def figures(seen: Seen) -> list[Figure]:
    """Returns all figures of a run, the most important figures first."""
    return [*overview(seen), *details(seen)]


def overview(seen: Seen) -> list[Figure]:
    """Returns the figures for a list of runs and for the top of a run's page."""
    run, state = (
        seen.run_state,
        Figure("up", "state", float(seen.state == "running"), _state(seen), "1 while a process is working on the run"),
    )
    if run is None:
        return [state]
    return [state, *_steps(seen, run), *_privacy(run), *_utility(run)]


def details(seen: Seen) -> list[Figure]:
    """Returns the figures that `overview` does not contain."""
    return [] if seen.run_state is None else [*_training(seen.run_state), *_sites(seen.run_state)]


def _state(seen: Seen) -> str:
    return "stopped, or running on another machine or in a container" if seen.elsewhere else seen.state


def _steps(seen: Seen, run: RunState) -> Iterator[Figure]:
    percent = f" ({100 * run.done // run.planned} %)" if run.planned else ""
    yield Figure(
        "steps_done",
        "steps",
        run.done,
        f"{run.done:,} of {run.planned:,}{percent}" if run.planned else "none yet",
        "Steps done",
    )
    yield Figure("steps_planned", "steps planned", run.planned or None, f"{run.planned:,}", "T, the planned steps")
    if seen.state != "running":
        return
    throughput = "not known yet" if seen.seconds is None else duration(seen.seconds)
    yield Figure(
        "step_seconds",
        "a step takes",
        seen.seconds,
        throughput,
        "Seconds that a step takes, observed during the run; not stored",
    )
    left = "not known yet" if seen.left is None else f"about {duration(seen.left)}"
    yield Figure("seconds_left", "time left", seen.left, left, "Seconds until the last step, at the current pace")
    if seen.last is not None:
        at = datetime.datetime.fromtimestamp(seen.last).strftime("%H:%M:%S")
        yield Figure("last_step_timestamp_seconds", "last step at", seen.last, at, "Time of the last step")


def _privacy(run: RunState) -> Iterator[Figure]:
    plan = run.plan
    if plan is None:
        return
    if run.epsilon is None or run.epsilon_planned is None:
        yield Figure("epsilon_spent", "epsilon spent", None, "none: no guarantee holds", "Epsilon of what was released so far")
        return
    planned, spent = round_up(run.epsilon_planned), round_up(run.epsilon)
    yield Figure(
        "epsilon_spent", "epsilon spent", run.epsilon, f"{spent} of {planned} planned", "Epsilon of what was released so far"
    )
    yield Figure("epsilon_planned", "epsilon planned", run.epsilon_planned, planned, "Epsilon of all planned steps")
    yield Figure(
        "delta", "delta", plan.promise.delta, round_up(plan.promise.delta), "Delta of epsilon_spent and epsilon_planned"
    )
    if run.budget is not None:
        what = "The largest epsilon that the site agreed to, or the epsilon of the records' lifetime budget"
        yield Figure("epsilon_budget", "budget", run.budget, round_up(run.budget), what)
    for number, (words, part) in enumerate(run.lifetime):
        taken = f"{words}: {percent(part)} taken by all runs together"
        what = "Fraction of the records' lifetime budget that all runs spent or reserved"
        yield Figure("budget_taken", "lifetime budget", part, taken, what, {"budget": str(number)})


def _utility(run: RunState) -> Iterator[Figure]:
    first = {item.name for item in headlines(run.table, 2)}
    for item in sorted(run.table, key=lambda item: item.name not in first):
        if item.trained is None and item.untrained is None:
            continue
        before, now = shown(item.untrained), shown(item.trained, item.trained_interval)
        text = f"{now}, before {before}" if item.trained is not None else f"{before} before training"
        what = "A figure of evaluation: exact, and not covered by epsilon"
        value = item.trained if item.trained is not None else item.untrained
        model = "trained" if item.trained is not None else "untrained"
        yield Figure("evaluation", item.label, value, text, what, {"metric": item.name, "split": item.split, "model": model})


def _training(run: RunState) -> Iterator[Figure]:
    plan, ledger = run.plan, run.ledger
    if plan is None or ledger is None:
        return
    if plan.private:
        yield Figure("noise_multiplier", "sigma", plan.noise.multiplier, f"{plan.noise.multiplier:g}", "Noise multiplier")
        std = f"{plan.noise_std:.4g} on each number of the sum"
        yield Figure("noise_std", "noise", plan.noise_std, std, "Standard deviation of the noise on the sum")
    for name, label, what in (
        ("learning_rate", "learning rate", "Learning rate of the last step in metrics.jsonl"),
        ("noisy_gradient_norm", "norm of the noisy gradient", "Norm of the last noisy gradient in metrics.jsonl, with noise"),
    ):
        if (series := run.series(name)) and not plan.bounding.method.closed_form:  # a closed form has no gradient
            yield Figure(name, label, series[-1][1], f"{series[-1][1]:.4g} at step {series[-1][0]:,}", what)
    again = "Number of times that a charged release was computed again, bit for bit, at no further cost"
    for name, value, what in (
        ("steps_charged", ledger.charged, "Charged releases, discarded steps included"),
        ("steps_replayed", ledger.replays, again),
        ("interruptions", len(ledger.resumed), "Number of times that the run resumed after an interruption"),
    ):
        yield Figure(name, name.replace("_", " "), value, f"{value:,}", what)


def _sites(run: RunState) -> Iterator[Figure]:
    if not run.sites:
        return
    yield Figure(
        "steps_discarded",
        "steps discarded",
        len(run.discarded),
        f"{len(run.discarded):,}",
        "Steps that were charged, but left the model unchanged",
    )
    awaited = run.awaited
    if awaited is not None and (until := awaited[1].until) is not None:
        left, what = max(0.0, until - time.time()), "Seconds until the coordinator continues without the missing sites"
        yield Figure("sites_awaited_seconds", "sites are awaited", left, f"{duration(left)} at most", what)
    for site in run.sites:
        label = {"site": site.name}
        yield Figure(
            "site_steps_answered",
            site.name,
            site.answered,
            f"{site.answered:,} answered",
            "Steps in which the site's answer was counted",
            label,
        )
        yield Figure("site_steps_missed", site.name, site.missed, f"{site.missed:,} missed", "Steps without an answer", label)
        if site.seconds is not None:
            took = duration(site.seconds)
            yield Figure(
                "site_seconds", site.name, site.seconds, took, "Seconds that the site's last answer took; not stored", label
            )
        if awaited is not None:
            waiting = float(site.name in awaited[1].awaited)
            yield Figure(
                "site_awaited", site.name, waiting, "awaited" if waiting else "", "1 while a step waits for the site", label
            )


_STATES = ("running", "stopped", "finished", "damaged")


class _Collector:
    """Prometheus collector of the figures of runs; each metric has the run's name as a label."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        from prometheus_client.core import GaugeMetricFamily

        state = GaugeMetricFamily("dpfed_state", "1 for the current state of the run", labels=["run", "state"])
        families: dict[str, GaugeMetricFamily] = {}
        for run in self._seen:
            for name in _STATES:
                state.add_metric([run.name, name], float(run.state == name))
            for figure in figures(run):
                if figure.value is None:
                    continue
                key = f"dpfed_{figure.key}"
                labels = ["run", *figure.labels]
                family = families.setdefault(key, GaugeMetricFamily(key, figure.help, labels=labels))
                # JSON can contain lone surrogates, which UTF-8 cannot encode: they are escaped.
                values = (text.encode("utf-8", "backslashreplace").decode() for text in figure.labels.values())
                family.add_metric([run.name, *values], figure.value)
        return iter([state, *families.values()])


def exposition(seen: Sequence[Seen]) -> bytes:
    """Returns the figures of runs in Prometheus's text format, as UTF-8."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(seen))
    return generate_latest(registry)


def health(seen: Iterable[Seen]) -> tuple[bool, dict[str, str]]:
    """Returns whether every run is running or finished, and the state of each run by name."""
    states = {run.name: run.state for run in seen}
    return all(state in ("running", "finished") for state in states.values()), states
