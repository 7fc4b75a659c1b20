"""Writes commits: the encrypted state of a training run after some steps, on disk before these steps are charged.

Between two commits nothing of a step is written. A commit is three actions, each on disk before the next begins: it writes the
state as an encrypted draft, charges all steps since the last commit in one write, and renames the draft. After a crash the
training resumes from the state, on any machine, so no charged step is computed again. If a crash left a draft, the resumed
training charges those steps of the draft that are not charged yet, and uses the draft. An error in the middle of a step leaves
no state to write: then the steps are only charged, and a resumed training computes them again (`dpfed.training.group`).

Only the run's secret key decrypts a state; whoever holds that key could remove the noise anyway. So a draft reveals nothing,
although it exists before its steps are charged (docs/guarantee.md, Output commit).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.callbacks import StepSummary
from dpfed.files.atomic import create_file, make_folder, sync_folder
from dpfed.files.reading import require_regular
from dpfed.privacy.ledger import Release
from dpfed.privacy.metrics_window import MetricsWindow
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.sealing import opened, sealed
from dpfed.training.checkpoint import Position, Scalars, restore, state_of
from dpfed.training.coordinator import Coordinator

_NAME = re.compile(r"(?P<step>\d{8,})\.(?P<kind>state|draft)")
_PURPOSE, _FORMAT = "the state of a training", 1
_ALIGNED = 64  # bytes: each tensor begins at a multiple of this
_NUMBERS = ("step", "steps", "learning_rate", "noisy_gradient_norm")  # fields of a summary that are numbers


@dataclass(frozen=True)
class Commit:
    """A state of a training run, and the steps that were taken since the previous commit.

    Attributes:
        path: Path of the file.
        position: Position of the training once these steps are charged.
        releases: Releases of the steps since the previous commit.
        summaries: Summaries of these steps, which callbacks have perhaps not seen yet.
        tensors: Tensors of the state; see `dpfed.training.checkpoint.state_of`.
        scalars: Numbers of the optimizer's state; see `dpfed.training.checkpoint.state_of`.
    """

    path: Path
    position: Position
    releases: Sequence[Release]
    summaries: Sequence[StepSummary]
    tensors: dict[str, Tensor]
    scalars: Scalars

    @property
    def is_draft(self) -> bool:
        """Returns whether the file is a draft, whose steps are possibly not charged yet."""
        return self.path.suffix == ".draft"


class Commits:
    """The commits of one training. Only the newest commit is kept.

    Args:
        folder: Folder of the commits; it is created with the first one.
        randomness: The coordinator's secret randomness, whose key encrypts the states.
        checkpoints: Folder of the checkpoints, the first of which has the frozen weights.
        model: Model of the training.
    """

    def __init__(self, folder: Path, randomness: Randomness, checkpoints: Path, model: nn.Module) -> None:
        self._folder, self._randomness, self._checkpoints, self._model = folder, randomness, checkpoints, model

    def write(
        self, coordinator: Coordinator, position: Position, releases: Sequence[Release], summaries: Sequence[StepSummary]
    ) -> Path:
        """Writes a state as a draft. When this method returns, the draft is on disk, and its steps may be charged.

        Args:
            coordinator: Coordinator of the training, between two steps.
            position: Position of the training once these steps are charged.
            releases: Releases of the steps since the last commit.
            summaries: Summaries of these steps.

        Returns:
            The path of the draft.

        Raises:
            OSError: If the draft cannot be written.
        """
        tensors, scalars = state_of(self._model, coordinator, whole=False)
        header = {
            "format": _FORMAT,
            "position": dataclasses.asdict(position),
            "releases": [[release.step, release.digest] for release in releases],
            "summaries": [_packed(summary) for summary in summaries],
            "scalars": scalars,
        }
        encrypted = sealed(_laid_out(header, tensors), self._randomness, _PURPOSE)
        make_folder(self._folder, 0o700)
        draft = self._folder / f"{position.step:08d}.draft"
        draft.unlink(missing_ok=True)
        create_file(draft, encrypted.data, 0o600)
        sync_folder(self._folder)
        return draft

    def name(self, draft: Path) -> None:
        """Renames a draft so that it is the newest state, and removes older states.

        The caller must have charged the steps of the draft.
        """
        named = draft.with_suffix(".state")
        os.replace(draft, named)
        for path in self._paths():
            if path != named:
                path.unlink()

    def newest(self) -> Commit | None:
        """Returns the newest commit that is complete and that the run's secret key decrypts; ``None`` if there is none.

        A draft that a crash truncated is not complete.
        """
        for path in reversed(self._paths()):
            commit = self._read(path)
            if commit is not None:
                return commit
        return None

    def restore(self, commit: Commit, coordinator: Coordinator) -> None:
        """Restores a training from a commit.

        Raises:
            UserError: If the commit belongs to another model or to other post-processors, or if the model has frozen weights
                and the first checkpoint is gone or damaged.
        """
        step, folder = commit.position.step, self._checkpoints
        restore(commit.path, commit.tensors, commit.scalars, step, self._model, coordinator, folder)

    def forget(self, commit: Commit) -> None:
        """Removes a commit's file."""
        commit.path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """Returns the paths of all states and drafts, oldest first."""
        entries = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(path for path in entries if _NAME.fullmatch(path.name))

    def _read(self, path: Path) -> Commit | None:
        try:
            require_regular(path)
            raw = np.fromfile(path, np.uint8)
        except OSError:
            return None
        content = opened(raw, self._randomness, _PURPOSE)
        if content is None:
            return None
        header, tensors = _taken_apart(content)
        releases = [Release(step, digest) for step, digest in header["releases"]]
        summaries = [_unpacked(facts) for facts in header["summaries"]]
        return Commit(path, Position(**header["position"]), releases, summaries, tensors, header["scalars"])


def _laid_out(header: dict[str, object], tensors: dict[str, Tensor]) -> np.ndarray:
    """Serialises header and tensors; equal states give equal bytes."""
    parts, at = list[tuple[str, str, list[int], int]](), 0
    for name, value in sorted(tensors.items()):
        parts.append((name, str(value.dtype).removeprefix("torch."), list(value.shape), at))
        at += -(-value.numel() * value.element_size() // _ALIGNED) * _ALIGNED
    text = json.dumps({**header, "tensors": parts}, sort_keys=True).encode()
    start = -(-(8 + len(text)) // _ALIGNED) * _ALIGNED
    content = np.zeros(start + at, np.uint8)
    content[:8] = np.frombuffer(len(text).to_bytes(8, "little"), np.uint8)
    content[8 : 8 + len(text)] = np.frombuffer(text, np.uint8)
    for name, _, _, place in parts:
        value = tensors[name]
        raw = torch.from_numpy(content[start + place : start + place + value.numel() * value.element_size()])
        raw.copy_(value.contiguous().view(-1).view(torch.uint8))
    return content


def _taken_apart(content: np.ndarray) -> tuple[dict, dict[str, Tensor]]:
    """Returns the header and the tensors from the bytes that `_laid_out` made."""
    length = int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8 : 8 + length].tobytes())
    start = -(-(8 + length) // _ALIGNED) * _ALIGNED
    tensors = {}
    for name, kind, shape, place in header["tensors"]:
        value = torch.empty(shape, dtype=getattr(torch, kind))
        raw = content[start + place : start + place + value.numel() * value.element_size()]
        value.view(-1).view(torch.uint8).copy_(torch.from_numpy(raw))
        tensors[name] = value
    return header, tensors


def _packed(summary: StepSummary) -> dict[str, object]:
    window = None if summary.window is None else summary.window.figures()
    return {name: getattr(summary, name) for name in _NUMBERS} | {"window": window}


def _unpacked(facts: dict) -> StepSummary:
    window = facts["window"]
    return StepSummary(**{**facts, "window": None if window is None else MetricsWindow.read(window)})
