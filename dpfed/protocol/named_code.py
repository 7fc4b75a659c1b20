"""Code that the terms of a federation name: an encoder, a transform and a loss, which every party calls on its own machine.

The terms hold no code. They hold what the coordinator has installed, as a version and a hash, and each party compares that with
its own. Looking for code imports nothing. A site calls what its operator has allowed by name (`dpfed.federation.site.allowed`).

Records by name are not among these: each party has a record store of its own. An optimizer by name is the coordinator's alone,
for it sees noisy sums only: no site imports it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dpfed.config import Config, Section
from dpfed.discovery import package_of
from dpfed.errors import UserError
from dpfed.files.source import find_source
from dpfed.objectives.own import is_shipped
from dpfed.schema.named import in_python, is_name

Key = Literal["model.image", "views.transform", "views.plain", "objective.name"]


class NamedCode(Section):
    """A part that the terms name, as the coordinator has it."""

    key: Key
    name: str = Field(description="package.module:object")
    package: str | None = Field(None, description="what was installed, with its version")
    digest: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of its package's Python files")

    def __str__(self) -> str:
        return f"{self.name}{f', {self.package}' if self.package else ''}, SHA-256 {self.digest}"


def names_of(config: Config) -> dict[Key, str]:
    """The names of code that every party calls, by their keys. dpfed's own losses are not among them.

    Args:
        config: of the run.
    """
    named: dict[Key, str | None] = {
        "model.image": config.model.image if config.model.is_own else None,
        "views.transform": config.views.transform,
        "views.plain": config.views.plain,
        "objective.name": config.objective.name,
    }
    return {key: name for key, name in named.items() if name is not None and is_name(name) and not is_shipped(name)}


def arguments_of(config: Config, key: Key) -> str:
    """What a named part is called with, in words; empty: nothing."""
    options: Mapping[str, Any] = {
        "model.image": config.model.options,
        "views.transform": config.views.options,
        "views.plain": {},
        "objective.name": config.objective.options,
    }[key]
    return json.dumps(dict(options), sort_keys=True) if options else ""


def code_of(config: Config) -> list[NamedCode]:
    """What a configuration names, as it is installed here.

    Args:
        config: of the run.

    Raises:
        UserError: for what no party may be asked to call, or what is not installed here.
    """
    refuse_parts_of_python(config)
    return [_installed(key, name) for key, name in names_of(config).items()]


def refuse_own_records(config: Config) -> None:
    """Refuses records by name.

    Raises:
        UserError: saying what to do.
    """
    if config.data.is_own:
        raise UserError(
            f"data.source = {config.data.source!r}: each site of a federation has a record store of its own, and so has the "
            "coordinator, which measures on one. Import the records (`dpfed data import`). [terms-own-records]"
        )


def refuse_parts_of_python(config: Config) -> None:
    """Refuses names of Python's own modules, none of which has an encoder, a transform or a loss.

    Raises:
        UserError: naming the key.
    """
    for key, name in names_of(config).items():
        if in_python(name):
            raise UserError(
                f"{key} = {name!r} was handed over in Python, and the terms of a federation need a name that each site finds: "
                "write it into a module. [terms-in-python]"
            )
        if _top(name) in sys.stdlib_module_names:
            raise UserError(
                f"{key} = {name!r} is a part of Python itself: no site of a federation should call it. Name an object of a "
                "package of your own. [terms-own-parts]"
            )


def refuse_other_code(code: tuple[NamedCode, ...]) -> None:
    """Refuses to continue where other code is installed than the terms say.

    Args:
        code: of the terms.

    Raises:
        UserError: naming the first that is missing here, or another one.
    """
    for agreed in code:
        here = _installed(agreed.key, agreed.name)
        if here.digest != agreed.digest:
            raise UserError(
                f"{agreed.key} = {agreed.name!r}: the terms name {agreed.package or 'a package'} with SHA-256 {agreed.digest}, "
                f"and {file_of(agreed.name)} here is of {here.package or 'a package'} with SHA-256 {here.digest}. Install what "
                "the coordinator has. [code-other]"
            )


def file_of(name: str) -> Path | None:
    """The file of a named part's module; ``None``: there is none here. Nothing is imported."""
    source = find_source(name.partition(":")[0])
    return None if source is None else source.file


def _installed(key: Key, name: str) -> NamedCode:
    module = name.partition(":")[0]
    source = find_source(module)
    if source is None:
        raise UserError(
            f"{key} = {name!r} of the federation's terms: there is no Python source of {module} here. Install its package "
            f"({_top(name)}), or start in the folder where it is. [code-missing]"
        )
    try:
        digest = source.digest()
    except OSError as error:
        raise UserError(f"{key} = {name!r}: cannot read {error.filename}: {error.strerror}. [code-unread]") from error
    return NamedCode(key=key, name=name, package=package_of(module), digest=digest)


def _top(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]
