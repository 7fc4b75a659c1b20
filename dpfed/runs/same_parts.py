"""Whether a run that is resumed has the parts that it began with: what a transform, a loss, an optimizer and a schedule say.

Their names alone do not tell RandomResizedCrop(224, (0.2, 1)) from RandomResizedCrop(224, (0.9, 1)), or AdamW(lr=1e-3) from
AdamW(lr=1). What cannot be put into words is not compared.
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

_PYTHON = re.compile(r"Python [\d.]+")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def settings_of(own: OwnParts) -> dict[str, str]:
    """What the user's own parts of a run say of themselves, by what they are.

    Args:
        own: the parts.
    """
    found = {
        "the transform": None if own.views is None else in_words(own.views.transform),
        "the transform of plain images": None if own.views is None or own.views.plain is None else in_words(own.views.plain),
        "the loss": None if own.loss is None else in_words(own.loss),
        **_of_optimizer(own.optimizer),
    }
    return {name: said for name, said in found.items() if said is not None}


def refuse_other_parts(kept: Mapping[str, str], now: Mapping[str, str], where: object) -> None:
    """Refuses to resume with another part of the same name.

    Args:
        kept: of the run, see `settings_of`.
        now: of the program that resumes it.
        where: the run's folder.

    Raises:
        UserError: naming the first part that differs.
    """
    for name, said in now.items():
        before = kept.get(name, said)
        other_python = _PYTHON.findall(before) != _PYTHON.findall(said)  # it compiles the same function to another code
        if before != said and not other_python:
            raise UserError(
                f"{where} began with another part: {name} was {kept[name]}, and is {said} now. Give the same to resume that "
                "run, or choose another folder. [resume-other-part]"
            )


def in_words(value: Any) -> str | None:
    """What an object says of itself; of a function the hash of its code; ``None``: it says nothing."""
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


def _digest(code: types.CodeType) -> str:
    """Of what a function does; where it stands in its file does not count."""

    def parts(code: types.CodeType) -> str:
        constants = [parts(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
        return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"

    return hashlib.sha256(parts(code).encode()).hexdigest()[:16]


def _of_optimizer(own: OwnOptimizer | None) -> dict[str, str | None]:
    """Optimizer and schedule with their settings, made for one parameter; one that this does not fit is not compared."""
    if own is None:
        return {}
    try:
        optimizer = own.make([nn.Parameter(torch.zeros(1))])
        groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        found: dict[str, str | None] = {"the optimizer": _plain(f"{type(optimizer).__name__} {groups}")}
        if own.schedule is not None:
            schedule = own.schedule(optimizer)
            state = {name: value for name, value in schedule.state_dict().items() if not callable(value)}
            found["the schedule"] = _plain(f"{type(schedule).__name__} {state}")
    except Exception:  # it asks for the model's own parameters
        return {}
    return found


def _plain(said: str) -> str | None:
    return None if _ADDRESS.search(said) else said
