"""Checks the parameters of an estimator before a fit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpfed.arrays.fitting import Wanted
from dpfed.arrays.refusal import ArrayError
from dpfed.errors import Notice
from dpfed.privacy.randomness import Randomness

_DEVICES = ("auto", "cpu", "cuda", "mps")


def wanted_of(parameters: Mapping[str, Any]) -> Wanted:
    """Makes the parameters of a fit from the parameters of an estimator; the plan later checks epsilon, delta and noise.

    Args:
        parameters: Parameters of the estimator, from ``get_params``.

    Raises:
        ArrayError: If `epsilon` is missing, `dimensions`, `aligned` or `device` is impossible, or `budget` is given without
            `folder`.
    """
    given, k, device = parameters["epsilon"], parameters["dimensions"], parameters["device"]
    if given is None:
        raise ArrayError("epsilon is missing: give the privacy loss of a fit, such as PrivateCCA(epsilon=3). [arrays-epsilon]")
    if k is not None and (not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1):
        raise ArrayError(f"dimensions = {k!r}: expected a whole number from 1, or None. [arrays-dimensions-odd]")
    if not isinstance(parameters["aligned"], bool | np.bool_):
        raise ArrayError(f"aligned = {parameters['aligned']!r}: expected True or False. [arrays-aligned-odd]")
    if device not in _DEVICES:
        raise ArrayError(f"device = {device!r}: expected one of {', '.join(_DEVICES)}. [arrays-device]")
    if parameters["budget"] is not None and parameters["folder"] is None:
        raise ArrayError("budget= needs folder=, in which the budget's ledger is kept. [arrays-budget-folder]")
    epsilon, delta = (value.item() if isinstance(value, np.generic) else value for value in (given, parameters["delta"]))
    return Wanted(epsilon, delta, None if k is None else int(k), bool(parameters["aligned"]), parameters["noise"], device)


def randomness_of(seed: Any) -> Randomness:
    """Returns fresh secret randomness; for a fixed seed, it returns predictable randomness and warns.

    Args:
        seed: Parameter ``random_state`` of the estimator.

    Raises:
        ArrayError: If the seed is neither ``None``, a whole number nor a ``RandomState``.
    """
    if seed is None:
        return Randomness.fresh()
    if isinstance(seed, np.random.RandomState):
        seed = int(seed.randint(2**31))
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise ArrayError(f"random_state = {seed!r}: leave it out; for tests, give a whole number. [arrays-seed]")
    warnings.warn(
        "random_state makes the noise predictable, so this fit promises no privacy, and its card says so: leave the seed out",
        Notice,
        stacklevel=3,
    )
    return Randomness.from_seed(int(seed))
