"""`dpfed start`: makes initial weights for a model, from procedural images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def start(
    config: Annotated[
        Path, typer.Argument(help="A TOML file, or a name such as quickstart (see `dpfed config list`).", show_default=False)
    ],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as model.width=64.")
    ] = None,
) -> None:
    """Make initial weights for a configuration's model, without any record.

    The model is trained without noise on procedural images. These are no person's data, so the weights cost no privacy. The
    configuration determines model, views of images and texts, objective, image size, device and data.stores;
    `dpfed config show start` shows all other settings.
    """
    from rich.markup import escape

    from dpfed.console.terminal import chosen_config, console, on_command_line, say, watching
    from dpfed.models.options import PROCEDURAL
    from dpfed.runs.starts import recipe_for

    # The check is that of the run that will begin there: it refuses keys that would have no effect in that run.
    begins_there = chosen_config(config, [*(assignments or ()), f"model.start={PROCEDURAL}"])
    model = begins_there.model.model_copy(update={"start": None, "start_digest": None})
    loaded = begins_there.model_copy(update={"model": model})
    recipe = recipe_for(loaded)
    images = f"{recipe.privacy.steps:,} steps on {recipe.data.records:,} procedural images"
    say(f"{loaded.name}: initial weights for its model, {images}; no record is read")
    with watching() as progress:
        progress.note("loading PyTorch")
        from dpfed.runs.pretraining import make_start

        path, was_there = make_start(loaded, progress)
    # The run needs the same settings: with other settings, it would look for the initial weights of another model.
    given = escape(on_command_line(config, (("--set", assignment) for assignment in assignments or ())))
    for line in (
        f"{path}" + (" (it was there already)" if was_there else ""),
        f"[dim]to start a run from these weights:[/] dpfed pretrain {given} --set model.start=procedural",
        f"[dim]on another machine, copy the folder:[/] dpfed pretrain {given} --set model.start={path.name}",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command()(start)
