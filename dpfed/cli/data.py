"""`dpfed data import` and `inspect`: records in, and what is in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Record stores: import a data set, look at what is in one.", no_args_is_help=True)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A data set on this machine: a file or a folder.", show_default=False)],
    dest: Annotated[Path, typer.Argument(help="The record store to make; must not exist.", show_default=False)],
    format: Annotated[str | None, typer.Option(help="Importer; found by looking at the source if not given.")] = None,
    size: Annotated[
        int | None, typer.Option(help="Store square images of this side, pixels; default: files as they are.")
    ] = None,
    validation: Annotated[int, typer.Option(help="Training records to hold out for validation.")] = 0,
    test: Annotated[int, typer.Option(help="Training records to hold out for test.")] = 0,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave unreadable records out instead of refusing.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Anyone may see these records; reports may show them.")] = False,
) -> None:
    """Import a data set into a record store."""
    from dpfed.cli.terminal import console, watching
    from dpfed.data.importers import import_records
    from dpfed.watching import import_progress

    with watching() as watcher:
        report = import_records(
            source, dest, format, size, validation, test, skip_broken, public, progress=import_progress(watcher)
        )
    counts = ", ".join(f"{count:,} {split}" for split, count in report.counts.items())
    console.print(f"{report.path}: {report.kind} records from {report.format}: {counts}", highlight=False, soft_wrap=True)
    for name, reason in report.skipped:
        console.print(f"[yellow]left out[/] {name}: {reason}", highlight=False, soft_wrap=True)


@app.command()
def inspect(
    dest: Annotated[Path, typer.Argument(help="A record store.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Count what is in a record store; no record is shown."""
    import json

    from dpfed.cli.terminal import console
    from dpfed.data.records import SPLITS, RecordStore

    store = RecordStore.open(dest)
    facts = {
        "name": store.name,
        "kind": store.kind,
        "public": store.public,
        "records": {split: len(store.split(split)) for split in SPLITS},
        "labels": {name: len(store.label_names.get(name, [])) or None for name in store.labels},
        "left_out": len(store.skipped),
    }
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        text = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
        console.print(f"[dim]{name.replace('_', ' '):>9}[/]  {text}", highlight=False, soft_wrap=True)
