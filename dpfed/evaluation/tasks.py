"""Which tasks the held-out records of a run allow, without torch: what is impossible is answered at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpfed.data.store.index import blocks
from dpfed.errors import UserError

if TYPE_CHECKING:
    from dpfed.config import Config
    from dpfed.data.store.records import RecordStore

HELD_OUT = ("validation", "test")
CLASS = "{}"  # stands for the class in a template


def tasks_of(store: RecordStore, config: Config) -> tuple[str, ...]:
    """The tasks that `evaluate` will run: those the config names or, if it names none, all that the records allow.

    ``evaluation.split = "none"`` measures nothing.

    Call it before training, so that an impossible task is known before any budget is spent.

    Raises:
        UserError: for an empty split, a task that the config names and this store or model cannot do, ``match = "unit"``
            without units, or a zero-shot template without a place for the class.
    """
    if config.evaluation.split == "none":
        return ()
    tasks: tuple[str, ...] = config.evaluation.tasks
    refuse_empty_split({name: store.count(name) for name in HELD_OUT}, store.name, config)
    reasons = {
        "retrieval": f"the records of {store.name} have no captions"
        if store.kind != "image-text"
        else _no_text_tower(config, "retrieval"),
        "zero_shot": _no_zero_shot(store, config),
        "knn": _no_labels(store, config),
        "linear": _no_labels(store, config),
    }
    for task in tasks:
        if reasons[task] is not None:
            raise UserError(
                f"evaluation.tasks names '{task}', but {reasons[task]}: leave evaluation.tasks out, and what the records allow "
                "is measured (on the command line: --set evaluation.tasks=). [eval-task]"
            )
    if not tasks:
        tasks = tuple(task for task, reason in reasons.items() if reason is None)
    if "retrieval" in tasks and config.evaluation.match == "unit" and store.units is None:
        raise UserError(f"evaluation.match = 'unit', but {store.name} names no units; set it to 'record'. [eval-no-units]")
    if "zero_shot" in tasks:
        check_templates(config.evaluation.templates)
    return tasks


def refuse_empty_split(counts: Mapping[str, int], name: str, config: Config) -> None:
    """Refuses to measure on records that are not there: a store's header tells.

    Args:
        counts: records of the held-out splits.
        name: of the data set.
        config: of the run.

    Raises:
        UserError: naming the split that has records.
    """
    split = config.evaluation.split
    if split == "none" or counts[split]:
        return
    other = next((other for other in HELD_OUT if counts[other]), None)
    advice = (
        f"set evaluation.split = '{other}', which has {counts[other]:,} records (on the command line: --set "
        f"evaluation.split={other}), or"
        if other
        else f"hold records out at the import (--{split} 1000, or data.{split} = 1000), or"
    )
    without = " without evaluation.tasks" if config.evaluation.tasks else ""
    raise UserError(
        f"the '{split}' split of {name} is empty: {advice} do not measure (evaluation.split = 'none'{without}). [eval-empty]"
    )


def check_templates(templates: Sequence[str]) -> None:
    """Refuses a template that would describe all classes alike.

    Raises:
        UserError: naming the template.
    """
    for template in templates:
        if CLASS not in template:
            raise UserError(
                f"evaluation.templates: {template!r} lacks {{}}, as in 'a photo of a {{}}.': add it. [eval-template]"
            )


def _no_zero_shot(store: RecordStore, config: Config) -> str | None:
    if reason := _no_text_tower(config, "zero-shot"):
        return reason
    if not class_columns(store, config):
        return f"the '{config.evaluation.split}' split of {store.name} has no labels whose classes have names"
    return None


def _no_text_tower(config: Config, task: str) -> str | None:
    if not config.model.reads_text:
        return f"model.kind = '{config.model.kind}' has no text tower; {task} needs 'image-text' or 'open_clip'"
    return None


def _no_labels(store: RecordStore, config: Config) -> str | None:
    if not label_columns(store, config):
        return f"{store.name} has no labels in both its 'train' and its '{config.evaluation.split}' split"
    return None


def label_columns(store: RecordStore, config: Config) -> list[str]:
    """Labels that are in both the training and the held-out split: those that k-NN and the linear probe predict."""
    splits = ("train", config.evaluation.split)
    return [name for name in store.labels if all(_any_labelled(store, name, split) for split in splits)]


def class_columns(store: RecordStore, config: Config) -> list[str]:
    """Labels that zero-shot predicts; those whose classes are called by numbers only when the config asks for the task."""
    asked = "zero_shot" in config.evaluation.tasks
    return [
        name
        for name in store.labels
        if any(asked or any(character.isalpha() for character in text) for text in store.label_names.get(name, []))
        and _any_labelled(store, name, config.evaluation.split)
    ]


def _any_labelled(store: RecordStore, name: str, split: str) -> bool:
    """Whether a record of a split has a label; it looks until it finds one."""
    of_split, values = store.within(split), store.labels[name]
    return any((of_split(first, end) & (values[first:end] >= 0)).any() for first, end in blocks(len(store)))
