"""`dpfed hub push`: a model and its privacy card to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def push(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME; created if it does not exist.", show_default=False)],
    license: Annotated[str | None, typer.Option(help="Of the weights, such as apache-2.0.", show_default=False)] = None,
    public: Annotated[bool, typer.Option("--public", help="Create a public repository; default: private.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Upload a run's model and privacy card, after a question. A run without a card is refused."""
    from dpfed.console.terminal import console, say
    from dpfed.errors import UserError

    say(f"preparing the model of {run}")
    from dpfed.artifacts.export import push

    def agreed(files: list[Path]) -> bool:
        for file in files:
            console.print(f"  {file.name}  [dim]{file.stat().st_size:,} bytes[/]", highlight=False, soft_wrap=True)
        if not yes and not console.is_terminal:
            raise UserError(f"there is no terminal to confirm the upload to {repo}: add --yes.")
        return yes or typer.confirm(f"Upload these files to {repo} on the Hugging Face hub?")

    address = push(run, repo, license, public, agreed)
    console.print(address or "Nothing was uploaded.", markup=False, highlight=False, soft_wrap=True)
