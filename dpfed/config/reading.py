"""Reads a configuration from a TOML file, and checks it key by key before a run changes anything.

An unknown key is an error that names the nearest valid key, because a misspelt privacy setting must never be ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpfed.config.configuration import Config
from dpfed.errors import UserError, nearest
from dpfed.files.shipped import find_config
from dpfed.files.toml_file import leaves, put, read_toml, toml_value
from dpfed.paths import path_of
from dpfed.schema.wording import has_control_characters, problem, shown


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a configuration file of a user.

    Args:
        path: Path of a TOML file, or the name of a config that dpfed ships, such as ``quickstart``; a file of that name takes
            precedence.
        overrides: Assignments ``section.key=value``, applied after the file. A value is TOML, or a string without quotes; an
            empty value removes the key, so that its default holds.

    Raises:
        UserError: If the file is missing or is not TOML, `overrides` is a string, an assignment is wrong (see `assigned`), or
            `parse_config` refuses the configuration.
    """
    tree = read_toml(find_config(path_of(path, "the configuration")), "config")
    return parse_config(assigned(overrides, tree), str(path))


def assigned(overrides: Sequence[str], tree: dict[str, Any] | None = None) -> dict[str, Any]:
    """Applies assignments to a configuration's nested dictionaries, see `load_config`.

    Args:
        overrides: Assignments ``section.key=value``.
        tree: Nested dictionaries, which are changed; ``None``: start from empty ones.

    Returns:
        The changed dictionaries.

    Raises:
        UserError: If `overrides` is a string, an entry is not a valid assignment, or two assignments give one key two values.
    """
    if isinstance(overrides, str):
        raise UserError(
            f"the overrides are one string: expected a list of assignments, such as [{overrides!r}]. [config-overrides-text]"
        )
    tree = {} if tree is None else tree
    given: dict[str, str] = {}
    for assignment in overrides or ():
        if not isinstance(assignment, str):
            raise UserError(f"{assignment!r}: expected a string such as 'privacy.epsilon=4' as assignment. [setting-type]")
        key = _assign(tree, assignment)
        for earlier, other in given.items():
            if other != assignment and (earlier == key or earlier.startswith(f"{key}.")):  # the earlier value would be lost
                raise UserError(f"{other!r} and {assignment!r} give one key two values: leave one out. [setting-twice]")
        given[key] = assignment
    return tree


def parse_config(tree: dict[str, Any], origin: str = "config") -> Config:
    """Makes and checks a user's configuration from nested dictionaries.

    Args:
        tree: Sections and keys, such as ``{"privacy": {"epsilon": 8.0}}``.
        origin: Origin of the configuration, such as its file, for messages.

    Raises:
        UserError: If a key is unknown or a value is wrong; the message names the first such key. Also if keys have no effect,
            or the warm-up is longer than the run, see `Config.refuse_idle`.
    """
    config = _checked(tree, origin)
    config.refuse_idle(origin)
    return config


def read_back(tree: dict[str, Any], origin: str) -> Config:
    """Makes a configuration from a file that dpfed wrote itself. Keys without an effect may be given: they get their defaults.

    Options of private moments that an earlier version of dpfed did not write get the values that it used.

    Args:
        tree: Sections and keys.
        origin: Origin of the configuration, such as its file, for messages.

    Raises:
        UserError: If a key is unknown or a value is wrong; the message names the first such key.
    """
    config = _checked(tree, origin).effective()
    if config.method.closed_form and not config.is_aligned and not {"basis", "layers"} <= config.bounding.options.keys():
        # Written before there was a public basis, or before several layers of a tower were taken.
        options = {"basis": "random", "layers": "last"} | dict(config.bounding.options)
        config = config.model_copy(update={"bounding": config.bounding.model_copy(update={"options": options})})
    return config


def _checked(tree: dict[str, Any], origin: str) -> Config:
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise UserError(
            f"{origin}: expected keys and values, such as {{'privacy': {{'epsilon': 8.0}}}}; got {shown(tree)}. [config-keys]"
        )
    try:
        return Config.unchecked(**tree)
    except UserError as error:
        raise UserError(f"{origin}: {error.sentence} [config-invalid]") from None


def _assign(tree: dict[str, Any], assignment: str) -> str:
    """Applies an assignment to `tree`, and returns its key."""
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if has_control_characters(assignment):
        raise UserError(f"{assignment!r} holds a line break or control character: expected section.key=value. [setting-chars]")
    if not equals or not key:
        raise UserError(f"{assignment!r}: expected section.key=value, for example privacy.epsilon=4. [setting-no-equals]")
    if not text.strip() and not _known(key, tree):
        raise UserError(
            f"{assignment!r}: no such key to leave out; {nearest(key, leaves(Config().model_dump()))} [setting-unknown]"
        )
    put(tree, key, toml_value(text) if text.strip() else None, repr(assignment))
    return key


def _known(key: str, tree: dict[str, Any]) -> bool:
    """Returns whether a key exists in the schema, or, for a method's own options, in `tree`."""
    level: Any = Config
    for part in key.split("."):
        level = level.model_fields[part].annotation if part in getattr(level, "model_fields", {}) else None
        if level is None:
            return key.startswith("bounding.options.") and key in leaves(tree)
    return True


def first_problem(error: ValidationError) -> str:
    """Returns the first error in a few words, for settings other than a run's configuration, such as those of a site."""
    return problem(error)
