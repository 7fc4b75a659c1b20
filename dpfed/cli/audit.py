"""`dpfed audit`: attacks on a run's weights, and on the claimed epsilon of a mechanism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.audit import RECORDS

if TYPE_CHECKING:  # torch takes seconds to import
    from dpfed.audit.membership import MembershipAudit

app = typer.Typer(no_args_is_help=True)

_CONTRADICTED = 3  # exit code


@app.command()
def membership(
    run: Annotated[Path, typer.Argument(help="A finished run directory.", show_default=False)],
    non_members: Annotated[
        Path | None, typer.Option(help="A store of records that the run never saw; default: the run's held-out records.")
    ] = None,
    records: Annotated[int, typer.Option(min=0, help="At most this many members, and as many non-members; 0: all.")] = RECORDS,
    show: Annotated[bool, typer.Option("--show", help="Print the figures even if the records are not public.")] = False,
    not_covered: Annotated[
        str | None,
        typer.Option(
            metavar="WHY",
            help="Justification for an audit of records under a lifetime budget; the log of the budget keeps it.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Try to infer which records a run was trained on. The audit reads private records, and its figures are private, too.

    The figures go to RUN/audit/membership.json, which only you can read. They are printed if all records are public, or with
    --show.
    """
    from dpfed.console.terminal import console, say, watching

    say(f"attacking {run}", as_json)
    from dpfed.artifacts.directory import RunDirectory

    RunDirectory.open(run)  # before torch, which takes seconds to import
    with watching(as_json) as progress:
        progress.note("loading PyTorch")
        from dpfed.audit.membership import audit_membership

        path, audit = audit_membership(run, non_members, records, progress, not_covered=not_covered)
    printed = audit.public or show
    if as_json:
        print(path.read_text(encoding="utf-8") if printed else json.dumps({"file": str(path)}), end="" if printed else "\n")
        return
    if printed:
        _show(audit)
    else:
        console.print("The records are not public, so nothing is printed without --show.", highlight=False)
    console.print(f"[dim]private: figures of training records[/]  {path}", highlight=False, soft_wrap=True)


@app.command()
def privacy(
    config: Annotated[
        Path, typer.Argument(help="A configuration (a file, or a shipped name), or a finished run.", show_default=False)
    ],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key of the configuration.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the audit of a configuration; default: audits/NAME.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Audit the mechanism with this many workers.")] = 1,
    experiments: Annotated[
        int, typer.Option(min=400, max=1_000_000, help="Number of experiments; more of them raise the lower bound.")
    ] = 6000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Attack a plan's mechanism with canaries, and compare the lower bounds with the claimed epsilon.

    The audit reads no private record: canaries and all other records are generated. If the audit contradicts the claim,
    the exit code is 3.
    """
    from dpfed.console.terminal import chosen_config, console, say, watching
    from dpfed.errors import UserError

    say(f"attacking the claim of {config}", as_json)
    run = config if (config / "config.toml").is_file() else None
    if run is not None and (assignments or out):
        raise UserError(f"{run} is a run, whose configuration and folder are fixed: omit --set and --out. [option-run-fixed]")
    given = None if run else chosen_config(config, assignments)
    with watching(as_json) as progress:
        progress.note("loading PyTorch")
        from dpfed.audit.publishing import audit_config, audit_run

        if given is None:
            path, audit = audit_run(config, workers, experiments, progress)
        else:
            path, audit = audit_config(given, out or Path("audits") / given.name, workers, experiments, progress)
    facts = json.loads(path.read_text(encoding="utf-8"))
    if as_json:
        print(json.dumps(facts))
    else:
        _show_claim(facts)
        console.print(f"[dim]result[/]  {path}", highlight=False, soft_wrap=True)
    if audit.contradicted:
        raise typer.Exit(_CONTRADICTED)


def _show_claim(facts: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from dpfed.console.terminal import console
    from dpfed.privacy.promise import round_down
    from dpfed.report.audit import attacked, label, verdict

    table = Table(box=None, pad_edge=False)
    table.add_column("attack", no_wrap=True)
    for column in ("tries", "noise at most", "epsilon at least"):
        table.add_column(column, justify="right")
    for finding in facts["findings"]:
        noise = "" if finding["noise"] is None else f"{finding['noise']:.3g}"
        table.add_row(label(finding), f"{finding['tries']:,}", noise, round_down(finding["epsilon"]))
    console.print(table)
    moved = "not known (the method releases statistics besides the sum)"
    if facts["moved"] != 0:
        moved = "without limit (a sum was not finite)" if facts["moved"] is None else f"{facts['moved']:.4f}"
    console.print(
        f"Attacked: the mechanism of {attacked(facts)}. Noise multiplier claimed: {facts['noise_multiplier']:.4g}. Largest "
        f"change of the sum by one record: {moved}; sensitivity {facts['sensitivity']:.4f}.",
        highlight=False,
        soft_wrap=True,
    )
    style = "bold red" if facts["contradicted"] else "bold"
    console.print(f"[{style}]{escape(verdict(facts))}[/]", highlight=False, soft_wrap=True)
    console.print(
        "A lower bound states what these attacks achieved. It neither estimates epsilon nor proves privacy.",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


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
    for column in ("AUC", *(f"TPR at {fpr:.1%} FPR" for fpr in fprs), "before training"):
        table.add_column(column, justify="right")
    untrained = {outcome.attack: outcome for outcome in audit.outcomes if outcome.weights == "untrained"}
    for outcome in audit.outcomes:
        if outcome.weights == "trained":
            points = [f"{point.tpr.value:.1%} \\[{point.tpr.low:.1%}, {point.tpr.high:.1%}]" for point in outcome.points]
            before = f"{untrained[outcome.attack].points[0].tpr.value:.1%}"
            table.add_row(outcome.title, f"{outcome.auc.value:.3f}", *points, before)
    if audit.promise.epsilon is not None:
        most = ("" if point.most is None else percent_up(point.most) for point in audit.outcomes[0].points)
        table.add_row("[dim]most that the promise allows[/]", "", *most, "")
    console.print(table)
    console.print(
        f"Attacked: {audit.members:,} members and {audit.non_members:,} non-members. [..]: 95% intervals over the draw of "
        'records. "before training": the first TPR, for the initial weights. Another attack may find more.',
        style="dim",
        markup=False,
        highlight=False,
    )
    if audit.differ_untrained:
        console.print(
            "[bold red]Members and non-members can be distinguished before training[/]: they come from different sources. "
            "So the figures describe the sources, not the run. Choose other --non-members.",
            highlight=False,
        )
