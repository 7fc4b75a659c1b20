"""What `dpfed federation` and `dpfed site` show alike: lines with a name, terms, findings of the doctors."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import typer

from dpfed.console.terminal import console

if TYPE_CHECKING:
    from dpfed.federation.protocol.terms import Terms
    from dpfed.federation.provisioning.findings import Finding


def line(name: str, value: str, width: int = 12) -> None:
    """One line of output."""
    console.print(f"{name:>{width}}  {value}", markup=False, emoji=False, highlight=False, soft_wrap=True)


def tell(text: str) -> None:
    """A sentence of output, as it is."""
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show_terms(terms: Terms, own: int | None = None, confirmed: Collection[str] = ()) -> None:
    """What terms mean, see `statement`."""
    from dpfed.federation.protocol.statement import statement

    for name, value in statement(terms, own, confirmed):
        line(name, value, 15)


def show_findings(findings: list[Finding], as_json: bool) -> None:
    """What a doctor found, and what to do; ends the command with 1 if something is bad."""
    from dpfed.federation.provisioning.findings import State

    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            advice = f"\n{'':>21}-> {finding.advice}" if finding.advice else ""
            line(finding.about, f"{finding.state:<7} {finding.said}{advice}")
        counts = Counter(finding.state for finding in findings)
        tell("\n" + ", ".join(f"{counts[state]} {state}" for state in State if counts[state]))
    if any(finding.state is State.BAD for finding in findings):
        raise typer.Exit(1)
