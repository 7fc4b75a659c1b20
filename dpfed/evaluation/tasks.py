"""Chooses the tasks that a run's held-out records allow. It does not import torch, so impossible tasks are rejected at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpfed.data.store.index import blocks
from dpfed.errors import UserError
from dpfed.evaluation.options import EvaluationConfig
from dpfed.models.options import ModelConfig

if TYPE_CHECKING:
    from dpfed.data.record_set import RecordSet

HELD_OUT = ("validation", "test")
CLASS = "{}"  # placeholder of the class name in a template


def tasks_of(store: RecordSet, options: EvaluationConfig, model: ModelConfig) -> tuple[str, ...]:
    """Returns the tasks for `evaluate`: those that the options name or, if they name none, all that records and model allow.

    With ``evaluation.split = "none"``, the result is empty. Call this function before training, so that an impossible task is
    refused before any budget is spent.

    Args:
        store: Records of the run.
        options: Options that name tasks and split.
        model: Configuration of the measured model, which tells whether it reads text.

    Raises:
        UserError: If the split is empty, the store or model does not allow a named task, retrieval has ``match = "unit"`` and
            the store names no units, or a template of zero-shot has no placeholder for the class.
    """
    if options.split == "none":
        return ()
    tasks: tuple[str, ...] = options.tasks
    refuse_empty_split({name: store.count(name) for name in HELD_OUT}, store.name, options)
    reasons = {
        "retrieval": f"the records of {store.name} have no captions"
        if store.kind != "image-text"
        else _no_text_tower(model, "retrieval"),
        "zero_shot": _no_zero_shot(store, options, model),
        "knn": _no_labels(store, options),
        "linear": _no_labels(store, options),
    }
    for task in tasks:
        if reasons[task] is not None:
            raise UserError(
                f"evaluation.tasks names '{task}', but {reasons[task]}: leave evaluation.tasks out to measure all that "
                "records and model allow. [eval-task]",
                command="On the command line: --set evaluation.tasks=",
            )
    if not tasks:
        tasks = tuple(task for task, reason in reasons.items() if reason is None)
    if "retrieval" in tasks and options.match == "unit" and store.units is None:
        raise UserError(
            f"evaluation.match = 'unit', but {store.name} names no units; set evaluation.match = 'record'. [eval-no-units]"
        )
    if "zero_shot" in tasks:
        check_templates(options.templates)
    return tasks


def refuse_empty_split(counts: Mapping[str, int], name: str, options: EvaluationConfig) -> None:
    """Rejects a held-out split without records.

    Args:
        counts: Number of records of each held-out split.
        name: Name of the data set.
        options: Options that name the split.

    Raises:
        UserError: If the split is empty; the message names a split that has records, if there is one.
    """
    split = options.split
    if split == "none" or counts[split]:
        return
    other = next((other for other in HELD_OUT if counts[other]), None)
    advice = (
        f"set evaluation.split = '{other}', which has {counts[other]:,} records, or"
        if other
        else f"hold records out at the import (--{split} 1000, or data.{split} = 1000; in Python: Records({split}=...)), or"
    )
    without = " without evaluation.tasks" if options.tasks else ""
    command = f"--set evaluation.split={other or 'none'}" + (" --set evaluation.tasks=" if without and not other else "")
    raise UserError(
        f"the '{split}' split of {name} is empty: {advice} skip the evaluation (evaluation.split = 'none'{without}). "
        "[eval-empty]",
        command=f"On the command line: {command}",
    )


def check_templates(templates: Sequence[str]) -> None:
    """Rejects a template without a placeholder, which would describe all classes alike.

    Raises:
        UserError: If a template has no placeholder; the message names it.
    """
    for template in templates:
        if CLASS not in template:
            raise UserError(
                f"evaluation.templates: {template!r} lacks {{}}, as in 'a photo of a {{}}.': add it. [eval-template]"
            )


def _no_zero_shot(store: RecordSet, options: EvaluationConfig, model: ModelConfig) -> str | None:
    if reason := _no_text_tower(model, "zero-shot"):
        return reason
    if not class_columns(store, options):
        return f"the '{options.split}' split of {store.name} has no labels whose classes have names"
    return None


def _no_text_tower(model: ModelConfig, task: str) -> str | None:
    if not model.reads_text:
        return f"model.kind = '{model.kind}' has no text tower; {task} needs 'image-text' or 'open_clip'"
    return None


def _no_labels(store: RecordSet, options: EvaluationConfig) -> str | None:
    if not label_columns(store, options):
        return f"no label of {store.name} is given in both its 'train' and its '{options.split}' split"
    return None


def label_columns(store: RecordSet, options: EvaluationConfig) -> list[str]:
    """Returns the labels that k-NN and the linear probe predict: those that both the training and the held-out split have."""
    splits = ("train", options.split)
    return [name for name in store.labels if all(_any_labelled(store, name, split) for split in splits)]


def class_columns(store: RecordSet, options: EvaluationConfig) -> list[str]:
    """Returns the names of the labels that zero-shot predicts.

    Held-out records must have the label, and at least one of its class names must contain a letter. If the options name the
    task ``zero_shot``, class names without letters are enough.
    """
    asked = "zero_shot" in options.tasks
    return [
        name
        for name in store.labels
        if any(asked or any(character.isalpha() for character in text) for text in store.label_names.get(name, []))
        and _any_labelled(store, name, options.split)
    ]


def _any_labelled(store: RecordSet, name: str, split: str) -> bool:
    """Returns whether any record of a split has a label; the search ends at the first record that has it."""
    of_split, values = store.within(split), store.labels[name]
    return any((of_split(first, end) & (values[first:end] >= 0)).any() for first, end in blocks(len(store)))
