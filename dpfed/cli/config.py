"""`dpfed config list`, `show` and `keys`: the configurations that dpfed ships, and every key of a configuration.

The module describes each shipped file for people, from the comment at its beginning and from its settings.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpfed.config.keys import Key


import re
from dataclasses import dataclass
from pathlib import Path

from dpfed.config import Config, load_config
from dpfed.files.shipped import config_names, configs, sweep_names
from dpfed.privacy.promise import round_up

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON only, for scripts.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the configurations that dpfed ships, each with its purpose, its epsilon and its requirements."""
    from rich.markup import escape

    from dpfed.console.terminal import console

    trained = shipped_configs()
    # A sweep needs a configuration to change.
    sweeps = [Entry(name, _about(_comment(name)), "", f"a config: `dpfed sweep CONFIG {name}`") for name in sweep_names()]
    if as_json:
        entries = {"configs": trained, "sweeps": sweeps}
        print(json.dumps({kind: [dataclasses.asdict(entry) for entry in files] for kind, files in entries.items()}, indent=2))
        return
    for entry in (*trained, *sweeps):
        promise = f"epsilon {entry.epsilon}; " if entry.epsilon else ""
        console.print(f"[bold]{entry.name}[/]  {escape(entry.about)}", highlight=False, soft_wrap=True)
        console.print(f"    [dim]{promise}needs {escape(entry.needs)}[/]", highlight=False, soft_wrap=True)
    console.print()
    for line in (
        "dpfed pretrain NAME                  trains one",
        "dpfed config show NAME > mine.toml   copies one to a file, for you to change",
        "dpfed config keys                    explains every key that you can change",
    ):
        console.print(line, highlight=False, soft_wrap=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name, such as quickstart; `dpfed config list` shows all.", show_default=False)],
) -> None:
    """Print a shipped configuration, sweep or tower unchanged: `dpfed config show quickstart > mine.toml`."""
    from dpfed.files.shipped import shipped_file

    typer.echo(shipped_file(name).read_bytes(), nl=False)  # bytes, independent of the terminal's encoding


@app.command()
def keys(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A section (such as privacy), a key, or words to look for; default: all keys.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain the keys of a configuration: allowed values, default and meaning."""
    from dpfed.config.keys import matching

    matches = matching(words or [])
    if as_json:
        print(json.dumps([dataclasses.asdict(key) for key in matches], indent=2))
    else:
        _show_keys(matches)


def _show_keys(matches: list[Key]) -> None:
    from rich.markup import escape

    from dpfed.console.terminal import console

    for key in matches:  # a line for each key, not a table: for `grep`, and for narrow windows
        default = f"; default {key.default_in_toml}" if key.default_in_toml else ""
        words = f"[bold]{key.name}[/]  ({escape(key.allowed + default)})  {escape(_meaning(key))}"
        console.print(words, highlight=False, soft_wrap=not console.is_terminal)


def _meaning(key: Key) -> str:
    """Returns a key's meaning, and the other keys that decide whether this key has an effect."""
    return f"{key.meaning} [depends on {', '.join(key.depends_on)}]" if key.depends_on else key.meaning


_DIR = re.compile(r"\bDIR: (.+)")
_LOCAL_DIR = "local-dir:"  # the same as in dpfed.models.blueprints, which would import torch


@dataclass(frozen=True)
class Entry:
    """The description of a shipped file.

    Attributes:
        name: Name of the file on the command line.
        about: First sentence of the file's comment.
        epsilon: Epsilon, ``none``, or the noise from which epsilon follows; "" for a sweep, which uses the epsilon of its base
            configuration.
        needs: Requirements, such as a copy of the data or a GPU; ``nothing`` if there are none.
    """

    name: str
    about: str
    epsilon: str
    needs: str


def shipped_configs() -> list[Entry]:
    """Returns the descriptions of all shipped configurations."""
    return [_config(name) for name in config_names()]


def _config(name: str) -> Entry:
    config, comment = load_config(configs() / f"{name}.toml"), _comment(name)
    return Entry(name, _about(comment), _epsilon(config), _needs(config, comment))


def _epsilon(config: Config) -> str:
    privacy = config.privacy
    if config.bounding.method == "none":
        return "none"
    return round_up(privacy.epsilon) if privacy.epsilon is not None else f"follows from noise {privacy.noise_multiplier:g}"


def _needs(config: Config, comment: list[str]) -> str:
    needs = []
    if not config.data.from_nothing:
        told = next((match[1] for line in comment if (match := _DIR.search(line))), "your copy of the data")
        needs.append(f"--set data.path=DIR, {told}")
    if (config.model.architecture or "").startswith(_LOCAL_DIR):
        needs.append(f"the model in {str(config.model.architecture).removeprefix(_LOCAL_DIR)}")
    if config.model.kind == "open_clip":
        needs.append("dpfed[clip]")
    if "Needs a GPU." in " ".join(comment):
        needs.append("a GPU")
    return "; ".join(needs) or "nothing"


def _comment(name: str) -> list[str]:
    """Returns the lines of the comment at the beginning of a shipped file."""
    lines = Path(configs() / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]


def _about(comment: list[str]) -> str:
    """Returns the first sentence of a comment. Indented lines are commands: they are skipped."""
    words = " ".join(line for line in comment if not line.startswith(" "))
    return words.split(". ")[0].rstrip(".") + "."
