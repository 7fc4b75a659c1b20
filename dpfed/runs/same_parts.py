"""Checks that a resumed run has the transform, loss, optimizer and schedule that it began with.

The check compares their settings, because names alone do not distinguish RandomResizedCrop(224, (0.2, 1)) from
RandomResizedCrop(224, (0.9, 1)), or AdamW(lr=1e-3) from AdamW(lr=1). It skips parts whose settings cannot be read. A run keeps
only hashes of settings, because a setting may come from the private records, such as the mean and deviation of `Normalize`.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dpfed.building.own import OwnParts
from dpfed.errors import UserError
from dpfed.training.optimizers import OwnOptimizer

_HASH = re.compile(r"sha256:[0-9a-f]{64}( \(Python [\d.]+\))?")
_PYTHON = re.compile(r", Python [\d.]+")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def settings_of(parts: OwnParts) -> dict[str, str]:
    """Returns the hashes of the settings of the user's parts, by the part's name.

    Args:
        parts: The user's own parts.
    """
    settings = {
        "the transform": None if parts.views is None else in_words(parts.views.transform),
        "the transform of plain images": None
        if parts.views is None or parts.views.plain is None
        else in_words(parts.views.plain),
        "the loss": None if parts.loss is None else in_words(parts.loss),
        **_of_optimizer(parts.optimizer),
    }
    return {name: _hashed(said) for name, said in settings.items() if said is not None}


def refuse_other_parts(kept: Mapping[str, str], now: Mapping[str, str], where: object) -> None:
    """Refuses to resume a run with a part whose settings differ.

    A part is not compared if the run kept no hash of its settings. A function is not compared either if another version or
    patch release of Python began the run, because that Python compiles the same code differently.

    Args:
        kept: Hashes at the run's beginning (`settings_of`); a run of an older dpfed holds the settings themselves.
        now: Hashes in the program that resumes the run.
        where: Folder of the run.

    Raises:
        UserError: If a part differs; the message names the first one.
    """
    for name, said in now.items():
        before = kept.get(name, said)
        before = before if _HASH.fullmatch(before) else _hashed(before)
        (digest, _, python), (other, _, other_python) = before.partition(" "), said.partition(" ")
        if digest != other and python == other_python:  # another Python compiles the same function differently
            raise UserError(
                f"{where} began with other settings of {name}. Give those settings to resume the run, or choose another "
                "folder. [resume-other-part]"
            )


def in_words(value: Any) -> str | None:
    """Returns an object's settings as text: its `repr`, or a hash of a function's code; ``None``: they cannot be read."""
    if isinstance(value, functools.partial):
        said = in_words(value.func)
        return said and f"{said} of {value.args}, {value.keywords}"
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        return f"{value.__qualname__} (code {_digest(value.__code__)}, Python {platform.python_version()})"
    if isinstance(value, type) or type(value).__repr__ is object.__repr__:
        return None
    said = repr(value)
    return None if _ADDRESS.search(said) else " ".join(said.split())


def _hashed(said: str) -> str:
    """Returns the SHA-256 of settings, followed by the Python version that compiled the functions among them."""
    python = _PYTHON.search(said)
    digest = hashlib.sha256(_PYTHON.sub("", said).encode()).hexdigest()
    return f"sha256:{digest}" + (f" ({python[0][2:]})" if python else "")


def _digest(code: types.CodeType) -> str:
    """Computes the hash of a function's code, without its line numbers."""

    def parts(code: types.CodeType) -> str:
        constants = [parts(constant) if isinstance(constant, types.CodeType) else repr(constant) for constant in code.co_consts]
        return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"

    return hashlib.sha256(parts(code).encode()).hexdigest()[:16]


def _of_optimizer(given: OwnOptimizer | None) -> dict[str, str | None]:
    """Returns the settings of an optimizer and a schedule that are built over a placeholder parameter; empty if that fails."""
    if given is None:
        return {}
    try:
        optimizer = given.make([nn.Parameter(torch.zeros(1))])
        groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        settings: dict[str, str | None] = {"the optimizer": _plain(f"{type(optimizer).__name__} {groups}")}
        if given.schedule is not None:
            schedule = given.schedule(optimizer)
            state = {name: value for name, value in schedule.state_dict().items() if not callable(value)}
            settings["the schedule"] = _plain(f"{type(schedule).__name__} {state}")
    except Exception:  # the optimizer needs the model's own parameters
        return {}
    return settings


def _plain(said: str) -> str | None:
    return None if _ADDRESS.search(said) else said
