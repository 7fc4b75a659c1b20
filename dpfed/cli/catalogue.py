"""What dpfed ships, described for people: from the comment that each file begins with, and from what the file says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dpfed.config import Config, load_config
from dpfed.config.shipped import config_names, configs, sweep_names
from dpfed.privacy.promise import round_up

_DIR = re.compile(r"\bDIR: (.+)")
_LOCAL_DIR = "local-dir:"  # of dpfed.models.blueprints, which this leaves alone: it takes torch


@dataclass(frozen=True)
class Entry:
    """A shipped file.

    Attributes:
        name: what the command line calls it.
        about: one sentence, the first of the file.
        epsilon: the promise, in words; empty for a sweep, which takes its base's.
        needs: what the user must bring.
    """

    name: str
    about: str
    epsilon: str
    needs: str


def shipped_configs() -> list[Entry]:
    """Every configuration that can be trained."""
    return [_config(name) for name in config_names()]


def shipped_sweeps() -> list[Entry]:
    """Every sweep, which changes a configuration."""
    return [Entry(name, _about(_comment(name)), "", f"a config: `dpfed sweep CONFIG {name}`") for name in sweep_names()]


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
    if config.data.source not in ("shapes", "procedural"):
        told = next((match[1] for line in comment if (match := _DIR.search(line))), "your copy of the data")
        needs.append(f"--set data.path=DIR, {told}")
    if (config.model.architecture or "").startswith(_LOCAL_DIR):
        needs.append(f"the model in {str(config.model.architecture).removeprefix(_LOCAL_DIR)}")
    if config.model.kind == "open_clip":
        needs.append("dpfed[clip]")
    if "Wants a GPU." in " ".join(comment):
        needs.append("a GPU")
    return "; ".join(needs) or "nothing"


def _comment(name: str) -> list[str]:
    """The lines of the comment that a shipped file begins with."""
    lines = Path(configs() / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]


def _about(comment: list[str]) -> str:
    """The first sentence; commands are indented."""
    words = " ".join(line for line in comment if not line.startswith(" "))
    return words.split(". ")[0].rstrip(".") + "."
