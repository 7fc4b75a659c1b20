"""Exports a run's model to a folder of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.formats import write_format
from dpfed.artifacts.model_card import model_card
from dpfed.artifacts.resuming import resuming_command
from dpfed.errors import UserError
from dpfed.files.atomic import new_folder
from dpfed.models.description import BLACK_BORDERS, FOREIGN, describe
from dpfed.paths import path_of


def about_images(folder: str | Path) -> str:
    """Describes how the exported model's library prepares images differently from training; "": no difference.

    Raises:
        UserError: If there is no run, or its model is missing or damaged.
    """
    description = describe(RunDirectory.open(folder).model)
    if not str(description["model"].get("image", "")).startswith("timm/") or description.get("resize") != "pad":
        return ""
    return f"{BLACK_BORDERS} The section dpfed of config.json says how to reproduce them; the page of --hub has the code."


def export_model(
    folder: str | Path, dest: str | Path, hub: bool = False, license: str | None = None, format: str | None = None
) -> list[Path]:
    """Copies the model of a finished run into a new folder; the copied files get the time of copying.

    Args:
        folder: Directory of the run.
        dest: Folder to make.
        hub: Whether to add a page for the Hugging Face hub, ``README.md`` (`dpfed.artifacts.model_card`).
        license: License of the weights, which the page of `hub` states; ``None``: the page states none.
        format: Name of another library's format (`dpfed.artifacts.formats`); ``None``: dpfed's own, with everything that
            `dpfed.load` reads.

    Returns:
        Paths of the files and folders that were written directly in `dest`, sorted.

    Raises:
        UserError: If there is no run, it is not finished, or one of its files is missing or damaged; if `dest` exists or cannot
            be written, the options do not fit together, the license is not a valid name, the format is unknown or cannot hold
            the model, or a package that `hub` or `format` needs is missing.
    """
    run, dest = RunDirectory.open(folder), path_of(dest, "the destination")
    if not run.finished:
        raise UserError(f"{folder} is not finished: {resuming_command(run)} trains it to its end. [export-unfinished]")
    if os.path.lexists(dest):
        raise UserError(f"{dest} exists already; choose another destination or delete it first. [export-exists]")
    if license is not None and not hub:
        raise UserError(
            "--license is for the page that --hub makes: add --hub, or leave --license out. [export-license-unused]"
        )
    if format is not None and hub:
        raise UserError(
            "--hub adds a page to the folder in dpfed's own format: leave --format or --hub out. [export-format-hub]"
        )
    if not run.model.is_dir():
        raise UserError(f"{run.model} is missing: restore this folder, which holds the run's model. [export-no-model]")
    page = model_card(run, license) if hub else None
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(dest) as draft:
            if format is None:
                shutil.copytree(run.model, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(FOREIGN))
            else:
                write_format(format, run.model, draft)
            if page is not None:
                (draft / "README.md").write_text(page, encoding="utf-8")
            for path in (draft, *draft.rglob("*")):
                os.utime(path)  # the end of training reveals how long its steps took, which no epsilon covers
    except OSError as error:
        raise UserError(f"cannot write {dest}: {error.strerror or error}. [export-unwritable]") from error
    return sorted(dest.iterdir())
