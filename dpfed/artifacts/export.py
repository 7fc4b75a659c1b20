"""A run's model, taken out of the run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.model_card import model_card
from dpfed.errors import UserError
from dpfed.files.atomic import new_folder, write_atomically
from dpfed.files.reading import read_bytes
from dpfed.models.folder import ADAPTERS
from dpfed.places import path_of


def export_model(
    folder: str | Path,
    dest: str | Path,
    adapters: bool = False,
    hub: bool = False,
    license: str | None = None,
    onnx: bool = False,
) -> list[Path]:
    """Copies the model of a finished run; the copy has the time of copying.

    Args:
        folder: a run directory.
        dest: a folder to make; with `adapters` or `onnx`, a file.
        adapters: only what was trained; `dpfed.apply_adapters` adds it to the weights that the run started from.
        hub: with a page for the Hugging Face hub, ``README.md`` (`dpfed.artifacts.model_card`).
        license: of the weights, for that page.
        onnx: the image tower alone (`dpfed.models.onnx_export`).

    Returns:
        The files that were written.

    Raises:
        UserError: if the run is not finished, has no adapters, or `dest` exists; or if options do not fit together.
    """
    run, dest = RunDirectory.open(folder), path_of(dest, "the destination")
    if not run.finished:
        raise UserError(f"{folder} is not finished: `dpfed resume {folder}` trains it to its end.")
    if os.path.lexists(dest):
        raise UserError(f"{dest} exists already; choose another destination or delete it first.")
    if adapters + onnx > 1 or (adapters or onnx) and hub:
        raise UserError("--adapters and --onnx make one file; --hub makes a folder with a whole model: choose one.")
    if license is not None and not hub:
        raise UserError("--license is for the page that --hub makes: add --hub, or leave it out.")
    source = run.model / ADAPTERS if adapters else run.model
    if adapters and not source.exists():
        raise UserError(f"{folder} has no adapters: no tower of it was trained with 'lora'.")
    page = model_card(run, license) if hub else None
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        if onnx:
            from dpfed.models.onnx_export import write_onnx

            write_atomically(dest, lambda file: write_onnx(run.model, file))
        elif adapters:
            write_atomically(dest, read_bytes(source))
        else:
            with new_folder(dest) as draft:
                shutil.copytree(source, draft, dirs_exist_ok=True)
                if page is not None:
                    (draft / "README.md").write_text(page, encoding="utf-8")
                for path in (draft, *draft.rglob("*")):
                    os.utime(path)  # when training ended tells how long its steps took, which no epsilon covers
    except OSError as error:
        raise UserError(f"cannot write {dest}: {error.strerror or error}.") from error
    return [dest] if adapters or onnx else sorted(dest.iterdir())
