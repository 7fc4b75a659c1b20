"""`dpfed audit membership`: what a run's weights give away, tried by whoever holds its records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfed.audit import RECORDS

if TYPE_CHECKING:  # torch takes seconds to import
    from dpfed.audit.membership import MembershipAudit, Outcome
    from dpfed.audit.rates import Rate

app = typer.Typer(help="Attack a finished run, to see what its weights give away.", no_args_is_help=True)


@app.command()
def membership(
    run: Annotated[Path, typer.Argument(help="A finished run directory.", show_default=False)],
    non_members: Annotated[
        Path | None, typer.Option(help="A store of records that the run never saw; default: its own held-out records.")
    ] = None,
    records: Annotated[int, typer.Option(min=0, help="At most this many members, and as many non-members; 0: all.")] = RECORDS,
    show: Annotated[bool, typer.Option("--show", help="Print the figures although the records are not public.")] = False,
    not_covered: Annotated[
        str | None,
        typer.Option(metavar="WHY", help="Why an audit may be made of records that have a budget.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Try to find out which records a run was trained on. It reads private records, and its figures are private, too.

    The figures go to RUN/audit/membership.json, which only you can read. They are printed if all records are public, or with
    --show.
    """
    from dpfed.console.terminal import console, say, watching

    say(f"attacking {run}", as_json)
    from dpfed.runs.directory import RunDirectory

    RunDirectory.open(run)  # before torch, which takes seconds to import
    with watching(as_json) as watcher:
        watcher.note("loading PyTorch")
        from dpfed.audit.membership import audit_membership

        path, audit = audit_membership(run, non_members, records, watcher, not_covered=not_covered)
    printed = audit.public or show
    if as_json:
        print(path.read_text(encoding="utf-8") if printed else json.dumps({"file": str(path)}), end="" if printed else "\n")
        return
    if printed:
        _show(audit)
    else:
        console.print("The records are not public, so nothing is printed without --show.", highlight=False)
    console.print(f"[dim]private: figures of training records[/]  {path}", highlight=False, soft_wrap=True)


def _show(audit: MembershipAudit) -> None:
    from rich.markup import escape
    from rich.table import Table

    from dpfed.console.terminal import console
    from dpfed.privacy.promise import percent_up, round_up

    promise = "no guarantee"
    if audit.promise.epsilon is not None:
        promise = f"epsilon {round_up(audit.promise.epsilon)}, delta {round_up(audit.promise.delta)}"
    console.print(f"[bold]{escape(audit.name)}: {promise}[/]", highlight=False, soft_wrap=True)
    fprs = [point.fpr for point in audit.outcomes[0].points]
    table = Table(box=None, pad_edge=False)
    table.add_column("attack")
    for column in ("AUC", *(f"TPR at {fpr:.1%} FPR" for fpr in fprs), "before training", "epsilon shown"):
        table.add_column(column, justify="right")
    untrained = {outcome.attack: outcome for outcome in audit.outcomes if outcome.weights == "untrained"}
    for outcome in audit.outcomes:
        if outcome.weights == "trained":
            table.add_row(*_row(outcome, untrained[outcome.attack]))
    if audit.promise.epsilon is not None:
        most = ("" if point.most is None else percent_up(point.most) for point in audit.outcomes[0].points)
        table.add_row("[dim]most that the promise allows[/]", "", *most, "", "")
    console.print(table)
    console.print(
        f"Attacked: {audit.members:,} members and {audit.non_members:,} non-members. [..]: 95% intervals over the draw of "
        "records. Epsilon shown: the smallest epsilon that fits the attack's outcome (95% for all attacks together, records "
        "taken as independent). It is a lower bound, not an estimate: 0 means that these attacks show nothing.",
        style="dim",
        markup=False,
        highlight=False,
    )
    if audit.differ_untrained:
        console.print(
            "[bold red]Members and non-members can be told apart before training[/]: they come from different sources. So the "
            "figures describe the sources, not the run. Choose other --non-members.",
            highlight=False,
        )


def _row(trained: Outcome, untrained: Outcome) -> list[str]:
    from dpfed.privacy.promise import round_down

    points = [_percent(point.tpr) for point in trained.points]
    before = f"{untrained.points[0].tpr.value:.1%}"
    return [trained.title, f"{trained.auc.value:.3f}", *points, before, round_down(trained.epsilon_shown)]


def _percent(rate: Rate) -> str:
    return f"{rate.value:.1%} \\[{rate.low:.1%}, {rate.high:.1%}]"
