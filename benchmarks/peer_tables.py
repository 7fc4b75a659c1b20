"""Tables of dpfed beside other libraries, from a result file that names the commit of the code that measured it."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.record import figures

PLAIN, SAMPLER = "no privacy", "dpfed sampler"
CNN = "small CNN, S = "
_ORDER = (PLAIN, "dpfed", "torch.func", "jax_privacy", "Opacus, hooks", "Opacus, ghost")


def steps() -> str:
    """Returns the table of the time of a private step over a step without privacy, and of its memory at the largest batch."""
    cells = {name: cell for name, cell in _cells("step").items() if name.startswith(CNN)}
    batches = sorted({_batch(name) for name in cells})
    sizes = sorted({_size(name) for name in cells})
    heads = "".join(f" S = {size} |" for size in sizes)
    lines = [
        f"| time over no privacy, B = {', '.join(f'{batch:,}' for batch in batches)} |{heads}",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for name in _ORDER:
        shown = []
        for size in sizes:
            row = [cells.get(f"{CNN}{size}, B = {batch}") for batch in batches]
            there = [cell["contenders"][name] for cell in row if cell and name in cell["contenders"]]
            memory = f"; {there[-1]['step_mb']:.0f} MB" if there else ""
            alone = size > 1 and name.startswith("Opacus")  # it clips records, not groups
            shown.append("" if alone else ", ".join(_step(cell, name) for cell in row) + memory)
        if any(shown):
            lines.append(f"| {'**dpfed**' if name == 'dpfed' else name} | {' | '.join(shown)} |")
    return _whole("step", lines, cells)


def clip() -> str:
    """Returns the table of a private step of a CLIP model, beside open_clip's step."""
    lines = ["| ViT-B-32 at 224 px, B = 16 | time over open_clip's step on the same adapters | memory |", "|---|---|---|"]
    cells = {name: cell for name, cell in _cells("step").items() if not name.startswith(CNN)}
    for cell in cells.values():
        for who, contender in cell["contenders"].items():
            what = "private, adapters" if who.startswith("dpfed") else "no privacy"
            lines.append(f"| {who}, {what} | {contender['ratio']:.2f} | {contender['step_mb']:,.0f} MB |")
    return _whole("step", lines, cells)


def sampling() -> str:
    """Returns the table of the time to draw the records of a step."""
    cells = _cells("sampling")
    lines = ["| a step's draw | " + " | ".join(cells) + " |", "|---" * (len(cells) + 1) + "|"]
    names = {name: None for cell in cells.values() for name in cell["contenders"]}
    for name in names:
        shown = []
        for cell in cells.values():
            way = cell["contenders"][name]
            shown.append(f"{1000 * statistics.median(way['seconds']):,.2f} ms ({way['ratio']:.2f} x), {way['step_mb']:.0f} MB")
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return _whole("sampling", lines, cells)


def rounds() -> str:
    """Returns the table of the time of a round of a federation."""
    cells = _cells("federation")
    lines = ["| a round, three sites | " + " | ".join(cells) + " |", "|---" * (len(cells) + 1) + "|"]
    names = {name: None for cell in cells.values() for name in cell["contenders"]}
    for name in names:
        shown = [f"{statistics.median(cell['contenders'][name]['seconds']):.1f} s" for cell in cells.values()]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return _whole("federation", lines, cells)


def faster() -> str:
    """Returns a list of the cells in which another library is faster than dpfed."""
    lines = []
    for part, ours in (("step", "dpfed"), ("sampling", SAMPLER), ("federation", "dpfed, secure")):
        ahead: dict[str, list[str]] = {}
        for cell, measured in _cells(part).items():
            times = {name: statistics.median(contender["seconds"]) for name, contender in measured["contenders"].items()}
            for name in times:
                if ours in times and times[name] < times[ours] and name != PLAIN and not name.startswith("dpfed"):
                    ahead.setdefault(name, []).append(f"{times[name] / times[ours]:.2f} ({cell})")
        lines += [f"- {part}: {name} takes {', '.join(cells)} of dpfed's time." for name, cells in ahead.items()]
    return "\n".join(lines) or "In no cell."


def _cells(part: str) -> dict[str, Any]:
    return figures("peers").get(part, {}).get("cells", {})


def _size(cell: str) -> int:
    return int(cell.removeprefix(CNN).partition(",")[0])


def _batch(cell: str) -> int:
    return int(cell.rpartition("= ")[2])


def _step(cell: dict[str, Any] | None, name: str) -> str:
    if not cell:
        return "not measured"
    if name not in cell["contenders"]:
        return "left out: too long" if name in cell["left_out"] else "not there"
    return f"{cell['contenders'][name]['ratio']:.2f}"


def _whole(part: str, lines: list[str], cells: dict[str, Any]) -> str:
    """Returns a table, followed by the machines that the cells were measured on."""
    if not cells:
        return "Not measured yet."
    return "\n".join([*lines, "", f"{_machines(cells)}. Medians of {figures('peers')[part]['rounds']} rounds in turns."])


def versions() -> str:
    """Returns the names and versions of the compared packages."""
    packages = {
        name: number
        for part in ("step", "sampling", "federation")
        for name, number in figures("peers")[part]["packages"].items()
    }
    return ", ".join(f"{name} {number}" for name, number in packages.items()) + "."


def _machines(cells: dict[str, Any]) -> str:
    """Returns the machine of the measurements; if there are several machines, that of each column."""
    columns: dict[str, set[str]] = {}
    for name, cell in cells.items():
        machine = cell.get("hardware", f"{cell['cores']} core")  # early cells do not say which
        columns.setdefault(f"B = {_batch(name):,}" if name.startswith(CNN) else name, set()).add(machine)
    machines = set().union(*columns.values())
    if len(machines) == 1:
        return machines.pop()
    return "; ".join(f"{column}: {' or '.join(sorted(names))}" for column, names in columns.items())
