"""Prints output that `dpfed federation` and `dpfed site` share: lines with a name, terms, findings of the doctors.

The module also reads the settings of a new site, and declares the options of `dpfed pretrain` that simulate institutions in one
process.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpfed.errors import UserError, nearest

if TYPE_CHECKING:
    from dpfed.federation.provisioning.network import Finding
    from dpfed.federation.simulated import Simulation
    from dpfed.protocol.terms import Terms

_SETUP = {"coordinator", "store", "budget", "delta", "declared", "into", "proxy"}  # options of `dpfed site setup`


def line(name: str, value: str, width: int = 12) -> None:
    """Prints a line of output: a name, aligned to the right, and a value."""
    from dpfed.console.terminal import console

    console.print(f"{name:>{width}}  {value}", markup=False, emoji=False, highlight=False, soft_wrap=True)


def tell(text: str) -> None:
    """Prints a text without interpreting markup in it."""
    from dpfed.console.terminal import console

    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show_terms(terms: Terms, own: int | None = None, confirmed: Collection[str] = ()) -> None:
    """Prints what the terms of a federation mean; see `dpfed.protocol.statement.statement` for the arguments."""
    from dpfed.protocol.statement import statement

    for name, value in statement(terms, own, confirmed):
        line(name, value, 15)


def show_findings(findings: list[Finding], as_json: bool) -> None:
    """Prints a doctor's findings, each with its advice if there is any.

    Raises:
        typer.Exit: With exit code 1, after the output, if a finding is bad.
    """
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


def site_settings(settings: list[str]) -> dict[str, str]:
    """Reads the values of ``--set`` of `dpfed site setup`.

    Raises:
        UserError: If a text is not KEY=VALUE; if its key is unknown, has an option of its own, or is ``name``, which the kit
            states; or if a key gets two values.
    """
    from dpfed.federation.site.folder import SiteSettings

    assigned: dict[str, str] = {}
    known = SiteSettings.model_fields.keys() - _SETUP - {"name"}
    for text in settings:
        name, _, value = text.partition("=")
        if name in _SETUP:
            raise UserError(f"--set {text}: {name} has an option of its own: write --{name} instead. [option-site-own]")
        if name == "name":
            raise UserError(f"--set {text}: the kit already names the site. Leave name out. [option-site-name]")
        if name not in known:
            raise UserError(f"--set {name} is not a key of a site: {nearest(name, known)} [option-site-unknown]")
        if not value.strip():
            raise UserError(f"--set {text}: expected KEY=VALUE. Give {name} a value, or leave it out. [option-site-empty]")
        if assigned.setdefault(name, value) != value:
            raise UserError(f"--set gives {name} two values, {assigned[name]} and {value}: leave one out. [option-site-twice]")
    return assigned


def _option(help: str) -> typer.models.OptionInfo:
    return typer.Option(help=help, rich_help_panel="Simulated institutions", show_default=False)


Federated = Annotated[int | None, _option("Divide the records among this many sites, all in this process.")]
TrustMode = Annotated[
    Literal["central", "distributed", "secure", "local"] | None, _option("Who adds the noise; default central: the server.")
]
Drops = Annotated[int | None, _option("Number of sites that may drop out of a step; default 0.")]
Colluders = Annotated[int | None, _option("Number of sites that may collude, sharing what they know; default 1.")]
Skew = Annotated[float | None, _option("How much the sites' records differ, 0 to 1; default 0.8.")]


def simulated(federated: int | None, cluster: str | None, **options: str | float | None) -> Simulation | None:
    """Returns the simulation that the options ask for; ``None``: no simulation.

    Args:
        federated: Number of sites; ``None``: not given.
        cluster: Launcher of the workers; ``None``: not given.
        options: Values of the other options of simulated institutions by name; ``None``: not given.

    Raises:
        UserError: If options do not fit together, or a value is out of range.
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
                    f"--{name} {given[name]} has no effect with --trust {mode}, where the sites do not share the noise: leave "
                    "it out, or add --trust distributed or secure. [option-trust-unused]"
                )
    from pydantic import ValidationError

    from dpfed.federation.simulated import Simulation
    from dpfed.schema.wording import complaint

    try:
        simulation = Simulation.model_validate({"sites": federated, **given})
        simulation.trust_model  # noqa: B018 refuses impossible numbers
        return simulation
    except ValidationError as error:
        first = error.errors()[0]
        option = {"sites": "federated"}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise UserError(f"--{option} {first['input']}: {complaint(error)}. [option-federated-wrong]") from None
