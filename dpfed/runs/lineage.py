"""Lists the lineage of a model: all runs that contributed to its weights."""

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
    """Lists the runs that made a model: first those that made its starting weights, then its own run.

    Args:
        run: Directory of the model's own run.
        parts: Parts of the run.
        ledger: Ledger of the run.

    Returns:
        For each run the keys ``run`` (its id), ``data`` (name of its records), ``public`` (whether anyone may see the records),
        ``generated`` (whether the records are generated and so show no person), ``guarantee`` (whether a guarantee holds) and,
        if one holds, ``epsilon``, ``delta`` and ``unit``. For an unknown run, such as that of pretrained weights, ``run``,
        ``data``, ``public`` and ``guarantee`` are ``None``, and ``generated`` is False.
    """
    start = run.provenance.get("start")
    before: list[dict[str, Any]] = []
    if start is not None:
        before = start["trained"] or [UNKNOWN]
    elif start_of(parts.config.model) != "random":
        before = [UNKNOWN]  # the runs that made the pretrained weights, such as open_clip's
    plan, institutions = parts.plan, parts.terms is not None and not run.simulation.is_file()
    guarantee = plan.has_guarantee and not ledger.marks.get("fixed_seed", False) and math.isfinite(ledger.epsilon)
    this = {
        "run": run.identity[:ID_CHARACTERS],
        "data": "the sites' records" if institutions else parts.store.name,
        "public": parts.store.public and not institutions,
        # The configuration of a federation names the coordinator's records, which may be generated; the sites' are not.
        "generated": not institutions and parts.config.data.source in ("shapes", PROCEDURAL),
        "guarantee": guarantee,
        **({"epsilon": ledger.epsilon, "delta": plan.promise.delta, "unit": plan.promise.protected} if guarantee else {}),
    }
    return [*before, this]
