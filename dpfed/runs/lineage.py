"""What a model says of the runs that made it."""

from __future__ import annotations

import math
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import ID_CHARACTERS, UNKNOWN
from dpfed.models.options import PROCEDURAL
from dpfed.models.summary import start_of
from dpfed.privacy.ledger import Ledger
from dpfed.runs.build import Parts


def runs_behind(run: RunDirectory, parts: Parts, ledger: Ledger) -> list[dict[str, Any]]:
    """The runs that made a model: those that made its starting weights, and then its own.

    Args:
        run: the directory of its own run.
        parts: of the run.
        ledger: of the run.

    Returns:
        Of each run ``run`` (its id), ``data`` (the name of its records), ``public`` (anyone may see them; ``None``: not known),
        ``generated`` (they show no person), ``guarantee`` (whether one holds), ``epsilon``, ``delta`` and ``unit`` (of the
        guarantee).
    """
    start = run.provenance.get("start")
    before: list[dict[str, Any]] = []
    if start is not None:
        before = start["trained"] or [UNKNOWN]
    elif start_of(parts.config.model) != "random":
        before = [UNKNOWN]  # those of an open_clip model
    plan, institutions = parts.plan, parts.terms is not None and not run.simulation.is_file()
    guarantee = plan.has_guarantee and not ledger.marks.get("fixed_seed", False) and math.isfinite(ledger.epsilon)
    this = {
        "run": run.identity[:ID_CHARACTERS],
        "data": "the sites' records" if institutions else parts.store.name,
        "public": parts.store.public and not institutions,
        "generated": parts.config.data.source in ("shapes", PROCEDURAL),
        "guarantee": guarantee,
        **({"epsilon": ledger.epsilon, "delta": plan.promise.delta, "unit": plan.promise.protected} if guarantee else {}),
    }
    return [*before, this]
