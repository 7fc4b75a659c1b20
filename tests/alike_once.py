"""Whether a device computes a group alike beside any others, asked once for each model, its weights and its shape of passes.

The answer takes fifty passes, and tests that ask something else build engines of the same few models again and again. What is
skipped was answered with yes before in this process, by an engine that computes the same bits in its first pass. No refusal is
kept, and tests of the question itself ask it each time.
"""

from __future__ import annotations

import hashlib

import pytest
import torch

from dpfed.bounding.engines import batch_invariance, layerwise

_REAL = batch_invariance.require_batch_invariance


class AlikeOnce:
    """Stands for `require_batch_invariance`."""

    def __init__(self) -> None:
        self._passed: set[tuple[object, ...]] = set()

    def __call__(self, run_pass, views, padding, model, vocabulary=3, brief=False, before=0) -> None:
        if any(view.device.type != "cpu" for view in views.values()) or any(batch_invariance.draws(m) for m in model.modules()):
            return _REAL(run_pass, views, padding, model, vocabulary, brief, before)
        trial = next(iter(batch_invariance.trials(views, padding, padding.totals[:1], vocabulary, before, (2, 3))))
        with torch.random.fork_rng(devices=[]):
            first = run_pass(trial.views, trial.sizes, trial.total)
        parts = [part for place in trial.probes for part in first.of(place)]
        shapes = tuple((name, view.shape[1:], view.dtype) for name, view in views.items())
        told = _digest([*parts, *model.state_dict().values()])
        asked = (repr(model), told, shapes, padding, vocabulary, brief, before)
        if asked not in self._passed:
            _REAL(run_pass, views, padding, model, vocabulary, brief, before)
            self._passed.add(asked)


def ask_once(patch: pytest.MonkeyPatch) -> None:
    """From now on."""
    patch.setattr(layerwise, "require_batch_invariance", AlikeOnce())


def ask_each_time(patch: pytest.MonkeyPatch) -> None:
    """As the product does."""
    patch.setattr(layerwise, "require_batch_invariance", _REAL)


def _digest(values: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
