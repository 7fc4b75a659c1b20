"""Code that the terms of a federation name: an encoder, a transform and a loss, which every party calls on its own machine.

The terms hold no code. They hold the version and the hash of the coordinator's code, and each party compares the hash with that
of the code installed on its machine. The comparison imports nothing. A site calls only code that its operator has allowed by
name (`dpfed.federation.site.allowed`).

Terms cannot name code that supplies records: each party has its own record store. An optimizer that a configuration names is
imported by the coordinator only, and reads nothing but noisy sums.
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
    """Code that the terms name, with the version and hash of what the coordinator has installed."""

    key: Key
    name: str = Field(description="package.module:object")
    package: str | None = Field(None, description="installed package, with its version")
    digest: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of its package's Python files")

    def __str__(self) -> str:
        return f"{self.name}{f', {self.package}' if self.package else ''}, SHA-256 {self.digest}"


def names_of(config: Config) -> dict[Key, str]:
    """Returns the names of the code that every party calls, by configuration key. Losses of dpfed itself are left out.

    Args:
        config: Configuration of the run.
    """
    named: dict[Key, str | None] = {
        "model.image": config.model.image if config.model.is_own else None,
        "views.transform": config.views.transform,
        "views.plain": config.views.plain,
        "objective.name": config.objective.name,
    }
    return {key: name for key, name in named.items() if name is not None and is_name(name) and not is_shipped(name)}


def arguments_of(config: Config, key: Key) -> str:
    """Returns the arguments with which named code is called, as JSON; an empty string if there are none.

    Args:
        config: Configuration of the run.
        key: Configuration key that names the code.
    """
    options: Mapping[str, Any] = {
        "model.image": config.model.options,
        "views.transform": config.views.options,
        "views.plain": {},
        "objective.name": config.objective.options,
    }[key]
    return json.dumps(dict(options), sort_keys=True) if options else ""


def code_of(config: Config) -> list[NamedCode]:
    """Returns the code that a configuration names, with its version and hash on this machine.

    Args:
        config: Configuration of the run.

    Raises:
        UserError: If a name is a part of Python itself, was given as a Python object, or its source is not installed on this
            machine or cannot be read.
    """
    refuse_parts_of_python(config)
    return [_installed(key, name) for key, name in names_of(config).items()]


def refuse_own_records(config: Config) -> None:
    """Refuses records that the configuration names as Python code.

    Raises:
        UserError: If the configuration names such records; the message says what to do instead.
    """
    if config.data.is_own:
        raise UserError(
            f"data.source = {config.data.source!r}: each site of a federation needs a record store, and so does the "
            "coordinator, which evaluates on one. Import the records (`dpfed data import`). [terms-own-records]"
        )


def refuse_parts_of_python(config: Config) -> None:
    """Refuses names that no site can or should import: objects given in Python, and Python's own modules.

    Python's own modules hold no encoder, no transform and no loss.

    Raises:
        UserError: If the configuration has such a name; the message has its key.
    """
    for key, name in names_of(config).items():
        if in_python(name):
            raise UserError(
                f"{key} = {name!r} was given as a Python object, but the terms of a federation need a name that each site can "
                "import: move the object into a module, and give MODULE:OBJECT. [terms-in-python]"
            )
        if _top(name) in sys.stdlib_module_names:
            raise UserError(
                f"{key} = {name!r} is a part of Python itself: no site of a federation should call it. Name an object of a "
                "package of your own. [terms-own-parts]"
            )


def refuse_other_code(code: tuple[NamedCode, ...]) -> None:
    """Refuses installed code whose hash differs from the hash in the terms.

    Args:
        code: Code that the terms name.

    Raises:
        UserError: If some of the code is missing on this machine, cannot be read or differs; the message names the first such
            object.
    """
    for agreed in code:
        here = _installed(agreed.key, agreed.name)
        if here.digest != agreed.digest:
            raise UserError(
                f"{agreed.key} = {agreed.name!r}: the terms name {agreed.package or 'a package'} with SHA-256 {agreed.digest}, "
                f"but {file_of(agreed.name)} on this machine belongs to {here.package or 'a package'} with SHA-256 "
                f"{here.digest}. Install the coordinator's version. [code-other]"
            )


def file_of(name: str) -> Path | None:
    """Returns the file of the module in ``MODULE:OBJECT``; ``None`` if it is not installed. The function imports nothing."""
    source = find_source(name.partition(":")[0])
    return None if source is None else source.file


def _installed(key: Key, name: str) -> NamedCode:
    """Returns named code with its version and hash on this machine.

    Raises:
        UserError: If the source of the code is not on this machine, or cannot be read.
    """
    module = name.partition(":")[0]
    source = find_source(module)
    if source is None:
        raise UserError(
            f"{key} = {name!r} of the federation's terms: there is no Python source of {module} on this machine. Install its "
            f"package ({_top(name)}), or start dpfed in the folder that holds it. [code-missing]"
        )
    try:
        digest = source.digest()
    except OSError as error:
        raise UserError(f"{key} = {name!r}: cannot read {error.filename}: {error.strerror}. [code-unread]") from error
    return NamedCode(key=key, name=name, package=package_of(module), digest=digest)


def _top(name: str) -> str:
    """Returns the top-level package in ``MODULE:OBJECT``."""
    return name.partition(":")[0].partition(".")[0]
