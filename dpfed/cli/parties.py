"""What `dpfed federation` and `dpfed site` show alike: lines with a name, terms, findings of the doctors.

Also here: the options of `dpfed pretrain` that simulate institutions in one process.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.federation.provisioning.network import Finding
    from dpfed.federation.simulated import Simulation
    from dpfed.protocol.terms import Terms


def line(name: str, value: str, width: int = 12) -> None:
    """One line of output."""
    from dpfed.console.terminal import console

    console.print(f"{name:>{width}}  {value}", markup=False, emoji=False, highlight=False, soft_wrap=True)


def tell(text: str) -> None:
    """A sentence of output, as it is."""
    from dpfed.console.terminal import console

    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show_terms(terms: Terms, own: int | None = None, confirmed: Collection[str] = ()) -> None:
    """What terms mean, see `statement`."""
    from dpfed.protocol.statement import statement

    for name, value in statement(terms, own, confirmed):
        line(name, value, 15)


def show_findings(findings: list[Finding], as_json: bool) -> None:
    """What a doctor found, and what to do; ends the command with 1 if something is bad."""
    from dpfed.federation.provisioning.network import State

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


def _option(help: str) -> typer.models.OptionInfo:
    return typer.Option(help=help, rich_help_panel="Simulated institutions", show_default=False)


Federated = Annotated[int | None, _option("Divide the records among this many sites, all in this process.")]
TrustMode = Annotated[
    Literal["central", "distributed", "secure", "local"] | None, _option("Who adds the noise; default central: the server.")
]
Drops = Annotated[int | None, _option("Sites that may drop out of a step; default 0.")]
Colluders = Annotated[int | None, _option("Sites that may tell others what they know; default 1.")]
Skew = Annotated[float | None, _option("How much the sites' records differ, 0 to 1; default 0.8.")]


def simulated(federated: int | None, cluster: str | None, **options: str | float | None) -> Simulation | None:
    """The simulation that the options ask for; ``None``: none.

    Raises:
        UserError: for options that do not fit together, or a value out of range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if federated is None:
        if given:
            name, value = next(iter(given.items()))
            raise UserError(f"--{name} {value} is for simulated institutions: add --federated N. [option-federated-only]")
        return None
    if cluster is not None:
        raise UserError(f"--federated {federated} runs in one process: leave --cluster {cluster} out. [option-cluster-unused]")
    if given.get("trust", "central") in ("central", "local"):
        for name in ("drops", "colluders"):
            if name in given:
                mode = given.get("trust", "central")
                raise UserError(
                    f"--{name} {given[name]} has no effect with --trust {mode}, where no noise is shared out: leave it out, or "
                    "add --trust distributed or secure. [option-trust-unused]"
                )
    from pydantic import ValidationError

    from dpfed.federation.simulated import Simulation
    from dpfed.schema.wording import complaint

    try:
        simulation = Simulation.model_validate({"sites": federated, **given})
        simulation.trust_model  # noqa: B018 refuses numbers that cannot be
        return simulation
    except ValidationError as error:
        first = error.errors()[0]
        option = {"sites": "federated"}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise UserError(f"--{option} {first['input']}: {complaint(error)}. [option-federated-wrong]") from None
