"""Shows all figures of a call in one table. Needs Python alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def summary(results: Path) -> str:
    """Returns the table.

    Args:
        results: Folder with the files ``gpu-NAME.json``.
    """
    figures = {
        path.stem.removeprefix("gpu-"): json.loads(path.read_text(encoding="utf-8"))["figures"]
        for path in sorted(results.glob("gpu-*.json"))
    }
    lines = [*_steps(figures.get("step", {})), *_others(figures), *_cells(figures.get("table1", {}))]
    return "\n".join([*lines, *_precisions(figures.get("precision", {}))])


def _steps(step: dict[str, Any]) -> Iterator[str]:
    heads = f"{'a step, all in':<26}{'private ms':>11}{'plain ms':>10}{'ratio':>7}{'records/s':>11}{'peak GiB':>10}"
    yield f"{heads}  best plain step"
    for name, ways in step.items():
        if not isinstance(ways, dict) or "private" not in ways:
            continue
        plain = {way: figures["ms"] for way, figures in ways.items() if way != "private" and "ms" in figures}
        best = min(plain, key=plain.__getitem__, default=None)
        row = ways["private"]
        if "ms" not in row:
            yield f"{name:<26}{row['failed']}"
            continue
        beside = f"{plain[best]:>10.1f}{row['ms'] / plain[best]:>7.2f}" if best else f"{'':>17}"
        yield f"{name:<26}{row['ms']:>11.1f}{beside}{row['records_per_second']:>11,.0f}{row['peak_gib']:>10.1f}  {best or ''}"
    if "ms_of_4096" in step.get("views", {}):
        yield f"4,096 views of 32 px: {step['views']['ms_of_4096']:.1f} ms"
    if "all" in (decoded := step.get("decoding", {})):
        share = decoded["all"] / decoded["one_core"] / decoded["cores"]
        whole = decoded.get("whole_cores", decoded["cores"])
        threads = f", {whole} of them whole" if whole != decoded["cores"] else ""
        cores = f"{decoded['cores']} cores{threads} {decoded['all']:,.0f}"
        yield f"decoding at 224 px, images a second: one core {decoded['one_core']:,.0f}, {cores} ({share:.2f} of linear)"


def _others(figures: dict[str, Any]) -> Iterator[str]:
    for name, seconds in figures.get("throughput", {}).get("coordinator", {}).items():
        yield f"coordinator, {name.replace('_', ' ')}: {seconds}"
    for name, check in _checks(figures.get("checks", {})):
        refused = f" (refused: {check['refused']})" if check.get("refused") else ""
        graph = [precision for precision, one in check.get("steps_moved", {}).items() if one.get("recorded")]
        recorded = f", passes in a CUDA graph: {', '.join(graph) or 'none'}" if "steps_moved" in check else ""
        yield f"check {name}: {'passed' if check.get('passed') else 'FAILED'}{refused}{recorded}"


def _checks(checks: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, check in checks.items():
        if name == "others":
            yield from ((f"others, {model}", figures) for model, figures in check.items())
        else:
            yield name, check


def _cells(table: dict[str, Any]) -> Iterator[str]:
    for cell in table.values():
        for row in cell.get("rows", ()):
            yield f"{row['name']:<10}{row['metric']:<20} ours {row['ours']}, published {row['published']}"


def _precisions(runs: dict[str, Any]) -> Iterator[str]:
    for precision, run in runs.items():
        if run.get("knn"):
            yield f"{run['steps']:,} steps in {precision}: kNN {run['knn'][0][1]} before, {run['knn'][-1][1]} after"
