"""`dpfed data inspect`: the numbers of records, labels, captions and units in a store. No record is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.data.store.records import RecordStore

_CAPTIONS_AT_ONCE = 65_536  # records whose captions are in memory at a time


def inspect(
    dest: Annotated[str, typer.Argument(help="A record store.", show_default=False)],
    check: Annotated[
        bool, typer.Option("--check", help="Read all records and compare them with the store's fingerprint.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Count the records of a store, and show its fingerprint. No record is shown."""
    import json

    from rich.text import Text

    from dpfed.console.terminal import console, say

    say(f"counting {dest}", as_json)
    from dpfed.data.reasons import visible
    from dpfed.data.store.record import SPLITS
    from dpfed.data.store.records import RecordStore

    store = RecordStore.open(dest)
    facts: dict[str, Any] = {
        "name": store.name,
        "kind": store.kind,
        "public": store.public,
        "records": {split: store.count(split) for split in SPLITS},
        "labels": {name: len(store.label_names.get(name, [])) or None for name in store.labels},
        "left_out": store.left_out,
        "fingerprint": store.contents,
    }
    if store.converted:
        facts["converted"] = store.converted
    if check:
        _check_contents(store)
        facts["checked"] = True
    if store.kind == "image-text":
        facts["captions"] = _captions(store)
    if store.units is not None:
        facts["units"] = _units(store)
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        text = ", ".join(f"{_words(key)} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
        console.print(Text.assemble((f"{_words(name):>9}  ", "dim"), visible(text)), soft_wrap=True)


def _check_contents(store: RecordStore) -> None:
    """Refuses a store whose records do not match its fingerprint, its index or its number of units."""
    import numpy as np

    from dpfed.data.store.fingerprint import contents_of
    from dpfed.data.store.layout import damaged
    from dpfed.data.store.record import record_key

    try:
        fingerprint = contents_of(store, bytes.fromhex(store.contents_key or ""))["fingerprint"]
    except ValueError as error:  # the key is not hexadecimal, or has another length
        raise damaged(store.path, "the key of its fingerprint cannot be read") from error
    if fingerprint != store.contents:
        raise UserError(
            f"the records of {store.path} have the fingerprint {fingerprint}, but the store states {store.contents}: they were "
            "changed since their import. Import them again, or restore the store. [store-contents-changed]"
        )
    for rows, batch in store.batches:
        if list(map(record_key, batch["id"].to_pylist())) != store.keys[rows].tolist():
            raise damaged(store.path, "its index has keys that are not those of its records")
    if store.units is not None and len(np.unique(store.units[store.split("train")])) != store.training_units:
        raise damaged(store.path, "its training records have another number of units than its header says")


def _captions(store: RecordStore) -> dict[str, int]:
    import numpy as np

    total = most = 0
    for start in range(0, len(store), _CAPTIONS_AT_ONCE):
        counts = [len(texts) for texts in store.captions(np.arange(start, min(start + _CAPTIONS_AT_ONCE, len(store))))]
        total, most = total + sum(counts), max(most, *counts)
    return {"total": total, "most_per_record": most}


def _units(store: RecordStore) -> dict[str, str | int | None]:
    import numpy as np

    from dpfed.data.store.record import SPLITS

    units = store.units
    assert units is not None  # the caller has checked
    _, records = np.unique(units, return_counts=True)
    each = np.concatenate([np.unique(units[store.split(split)]) for split in SPLITS])
    _, splits = np.unique(each, return_counts=True)
    return {
        "name": store.unit_name,
        "number": len(records),
        "most_records": int(records.max()),
        "in_several_splits": int((splits > 1).sum()),
    }


def _words(name: str) -> str:
    return name.replace("_", " ")
