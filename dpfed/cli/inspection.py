"""`dpfed data inspect`: what is in a store, in numbers; no record is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.data.store.records import RecordStore
    from dpfed.models.building import Tokenizer

_CAPTIONS_AT_ONCE = 65_536  # records whose captions are in memory at a time


def inspect(
    dest: Annotated[str, typer.Argument(help="A record store.", show_default=False)],
    config: Annotated[
        Path | None, typer.Option(help="Count the captions that are too long for this run's model.", show_default=False)
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Count the captions of more than this many words.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read all records and compare them with the store's fingerprint.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")] = False,
) -> None:
    """Count what is in a record store, and show its fingerprint; no record is shown."""
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
    tokenizer = _tokenizer(config, context)
    if store.kind == "image-text":
        facts["captions"] = _captions(store, tokenizer)
    elif tokenizer is not None:
        raise UserError(f"{store.path} has no captions to count; omit --config and --context.")
    if store.units is not None:
        facts["units"] = _units(store)
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        text = ", ".join(f"{_words(key)} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
        console.print(Text.assemble((f"{_words(name):>9}  ", "dim"), visible(text)), soft_wrap=True)


def _check_contents(store: RecordStore) -> None:
    """Refuses a store whose records are not those that its fingerprint is of."""
    from dpfed.data.store.fingerprint import contents_of, splits_of
    from dpfed.data.store.layout import damaged

    try:
        found = contents_of(store, store.contents_key).fingerprint(splits_of(store))
    except ValueError as error:  # the key is not a hexadecimal number of a key's length
        raise damaged(store.path, "the key of its fingerprint cannot be read") from error
    if found != store.contents:
        raise UserError(
            f"the records of {store.path} have the fingerprint {found}, and it says {store.contents}: they were changed since "
            "they were imported. Import them again, or restore the store."
        )


def _tokenizer(config: Path | None, context: int | None) -> Tokenizer | None:
    """What counts the words or tokens of a caption: that of a run's model, or one that reads `context` words."""
    if config is None and context is None:
        return None
    from dpfed.config import ModelConfig, load_config
    from dpfed.data.views.words import WordTokenizer
    from dpfed.models.building import tokenizer_for

    if config is None:
        assert context is not None  # one of them was given
        return WordTokenizer(ModelConfig().vocabulary, context)
    if context is not None:
        raise UserError("--config says how much the model reads, so --context cannot be given as well; choose one.")
    tokenizer = tokenizer_for(load_config(config).model)
    if tokenizer is None:
        raise UserError(f"the model of {config} reads no captions; give a config with a text tower, or --context.")
    return tokenizer


def _captions(store: RecordStore, tokenizer: Tokenizer | None) -> dict[str, int | str]:
    import numpy as np

    from dpfed.data.views.words import WordTokenizer

    total = most = longer = 0
    for start in range(0, len(store), _CAPTIONS_AT_ONCE):
        captions = store.captions(np.arange(start, min(start + _CAPTIONS_AT_ONCE, len(store))))
        total += sum(map(len, captions))
        most = max(most, *map(len, captions))
        if tokenizer is not None:
            longer += tokenizer.truncated([text for texts in captions for text in texts])
    counts: dict[str, int | str] = {"total": total, "most_per_record": most}
    if tokenizer is None:
        return counts
    counted = "words" if isinstance(tokenizer, WordTokenizer) else "tokens"
    return counts | {"context": tokenizer.context, "counted_in": counted, "longer_than_context": longer}


def _units(store: RecordStore) -> dict[str, str | int | None]:
    import numpy as np

    from dpfed.data.store.record import SPLITS

    units = store.units
    assert units is not None  # the caller looked
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
