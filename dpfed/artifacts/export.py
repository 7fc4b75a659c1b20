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
    transformers: bool = False,
    onnx: bool = False,
) -> list[Path]:
    """Copies the model of a finished run; the copy has the time of copying.

    Args:
        folder: a run directory.
        dest: a folder to make; with `adapters` or `onnx`, a file.
        adapters: only what was trained; `dpfed.apply_adapters` adds it to the weights that the run started from.
        hub: with a page for the Hugging Face hub, ``README.md`` (`dpfed.artifacts.model_card`).
        license: of the weights, for that page.
        transformers: as Hugging Face `transformers` reads it (`dpfed.models.transformers_clip`).
        onnx: the image tower alone (`dpfed.models.onnx_export`).

    Returns:
        The files that were written.

    Raises:
        UserError: if the run is not finished, has no adapters, or `dest` exists; if options do not fit together, or if
            transformers has no such model.
    """
    run, dest = RunDirectory.open(folder), path_of(dest, "the destination")
    if not run.finished:
        raise UserError(f"{folder} is not finished: `dpfed resume {folder}` trains it to its end.")
    if os.path.lexists(dest):
        raise UserError(f"{dest} exists already; choose another destination or delete it first.")
    if adapters + onnx > 1 or (adapters or onnx) and (hub or transformers):
        raise UserError(
            "--adapters and --onnx make one file; --hub and --transformers make a folder with a whole model: choose one."
        )
    if license is not None and not hub:
        raise UserError("--license is for the page that --hub makes: add --hub, or leave it out.")
    source = run.model / ADAPTERS if adapters else run.model
    if adapters and not source.exists():
        raise UserError(f"{folder} has no adapters: no tower of it was trained with 'lora'.")
    files = _files_for_transformers(run) if transformers else None
    page = model_card(run, license, transformers) if hub else None
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        if onnx:
            from dpfed.models.onnx_export import write_onnx

            write_atomically(dest, lambda file: write_onnx(run.model, file))
        elif adapters:
            write_atomically(dest, read_bytes(source))
        else:
            with new_folder(dest) as draft:
                if files is None:
                    shutil.copytree(source, draft, dirs_exist_ok=True)
                for name, content in (files or {}).items():
                    (draft / name).write_bytes(content)
                if page is not None:
                    (draft / "README.md").write_text(page, encoding="utf-8")
                for path in (draft, *draft.rglob("*")):
                    os.utime(path)  # when training ended tells how long its steps took, which no epsilon covers
    except OSError as error:
        raise UserError(f"cannot write {dest}: {error.strerror or error}.") from error
    return [dest] if adapters or onnx else sorted(dest.iterdir())


def _files_for_transformers(run: RunDirectory) -> dict[str, bytes]:
    """The run's model as transformers reads it.

    Raises:
        UserError: if it has no such model.
    """
    from dpfed.models.building import tokenizer_for
    from dpfed.models.description import MOMENTS, describe
    from dpfed.models.folder import load_encoder, model_config, preprocessing_in
    from dpfed.models.towers import ClipModel
    from dpfed.models.transformers_clip import transformers_files

    config = model_config(run.model)
    if MOMENTS in describe(run.model):
        raise UserError(
            f"transformers has no heads like those of {run.path}: export the folder, and docs/moments.md shows how."
        )
    if config.kind != "open_clip":
        raise UserError(f"transformers reads CLIP models, and {run.path} trained model.kind = '{config.kind}'.")
    model = load_encoder(run.model)
    assert isinstance(model, ClipModel)
    tokenizer = tokenizer_for(config)
    shipped = getattr(tokenizer, "stock", None)
    return transformers_files(
        model.model_cfg, model.clip.state_dict(), preprocessing_in(run.model), describe(run.model)["image_size"], shipped
    )
