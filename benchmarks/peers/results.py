"""The result file, which each part adds to: benchmarks/results/peers.json."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.environment import versions
from benchmarks.record import RESULTS, commit, figures, provenance, write_result
from dpfed.artifacts.provenance import hardware

NAME = "peers"


def kept(part: str) -> dict[str, Any]:
    """What is there of a part: its cells by name."""
    if not (RESULTS / f"{NAME}.json").exists():
        return {}
    return figures(NAME).get(part, {}).get("cells", {})


def keep(part: str, cells: dict[str, Any], **common: Any) -> None:
    """Puts cells of a part into the file, each with commit, cores and machine that it was measured with.

    Args:
        part: its name.
        cells: by name; those that are there under other names stay.
        common: figures of the part as a whole.
    """
    found = figures(NAME) if (RESULTS / f"{NAME}.json").exists() else {}
    stamp = {"commit": commit(), "cores": len(os.sched_getaffinity(0)), "hardware": hardware()}
    all_cells = kept(part) | {name: {**stamp, **cell} for name, cell in cells.items()}
    before = {key: value for key, value in found.get(part, {}).items() if key != "cells"}
    measured = {"command": provenance([0])["command"], "packages": versions()}
    found[part] = before | measured | common | {"cells": all_cells}
    write_result(NAME, found, seeds=[0])
