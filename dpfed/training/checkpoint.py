"""Checkpoints: one safetensors file each, written atomically, checked by digest, read without pickle.

The first checkpoint of a run holds the whole model; later ones hold what can have changed since: trained parameters, buffers,
optimizer state and what post-processors keep. All follow from noisy sums, so a checkpoint may leave the trust boundary. Secret
keys are never in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.files.atomic import make_folder, write_atomically
from dpfed.files.reading import require_regular
from dpfed.training.coordinator import Coordinator
from dpfed.training.post_processing import PostProcessor, assign_averaged_weights, load_states, states_of

FORMAT = "dpfed-checkpoint-2"
_POST = "post/"  # in front of what post-processors keep


@dataclass(frozen=True)
class Position:
    """Where a checkpoint stands.

    Attributes:
        step: steps finished.
        charged: releases that the ledger held then; a ledger with fewer has lost lines.
        fingerprint: of the plan.
    """

    step: int
    charged: int
    fingerprint: str


class DamagedCheckpoint(UserError):
    """A checkpoint cannot be read, or is not what was written."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: created when the first one is saved.
        keep: how many to keep beside the first.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def paths(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(self._folder.glob("step-*.safetensors"))

    def reserves(self) -> list[int]:
        """Steps finished at the checkpoints that a run may be resumed from, should newer ones be damaged; the newest is last.

        The first one counts as long as there are fewer than `keep` others: later, it lies too many steps behind.
        """
        paths = self.paths()
        return [steps_of(path) for path in (paths[1:] if len(paths) > self._keep else paths)]

    def resume(
        self, model: nn.Module, coordinator: Coordinator, beyond: int | None = None
    ) -> tuple[Position | None, list[Path]]:
        """Restores the newest checkpoint that is not damaged.

        Args:
            model: of the training.
            coordinator: of the training.
            beyond: those of fewer steps are left alone.

        Returns:
            Where it stands, and the damaged ones, which are newer; ``None``: all that are left are of fewer steps.

        Raises:
            UserError: if all are damaged; see `load`.
        """
        damaged: list[Path] = []
        for path in reversed(self.paths()):
            if beyond is not None and steps_of(path) < beyond:
                return None, damaged
            try:
                return self.load(path, model, coordinator), damaged
            except DamagedCheckpoint:
                damaged.append(path)
        raise UserError(
            f"all checkpoints in {self._folder} are damaged ({', '.join(path.name for path in damaged)}): restore one from a "
            "backup. The ledger states what was spent. [checkpoint-all-damaged]"
        )

    def save(self, progress: Position, model: nn.Module, coordinator: Coordinator) -> Path:
        """Writes a checkpoint, then removes the oldest beyond `keep`, but never the first one."""
        tensors, scalars = state_of(model, coordinator, whole=not self.paths())
        tensors = {name: value.cpu().contiguous().clone() for name, value in tensors.items()}
        header = {"format": FORMAT, "optimizer": json.dumps(scalars)}
        header |= {name: str(value) for name, value in vars(progress).items()}
        header["digest"] = _digest(tensors, header)
        make_folder(self._folder)
        path = self._folder / f"step-{progress.step:08d}.safetensors"
        write_atomically(path, lambda draft: save_file(tensors, draft, metadata=header))
        # Never the first: the trained model is held against it, and it alone has the frozen weights.
        for old in self.paths()[1 : -self._keep]:
            old.unlink()
        return path

    def load(self, path: Path, model: nn.Module, coordinator: Coordinator) -> Position:
        """Restores model, optimizer and post-processors from a checkpoint.

        Raises:
            DamagedCheckpoint: if it is damaged; nothing is restored then.
            UserError: if it belongs to another model.
        """
        tensors, header = _read(path)
        position = Position(int(header["step"]), int(header["charged"]), header["fingerprint"])
        restore(path, tensors, json.loads(header["optimizer"]), position.step, model, coordinator)
        return position


Scalars = dict[str, float | int]


def state_of(model: nn.Module, coordinator: Coordinator, whole: bool) -> tuple[dict[str, Tensor], Scalars]:
    """All that a resumed training must have back: of the model, the optimizer and the post-processors.

    Args:
        model: of the training.
        coordinator: of the training.
        whole: whether frozen weights are among it.

    Returns:
        Tensors as they are, on their device, and what the optimizer keeps as numbers.
    """
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    state = {name: value for name, value in model.state_dict().items() if whole or name not in frozen}
    tensors = {f"model/{name}": value for name, value in state.items()}
    scalars: Scalars = {}
    for index, state in coordinator.update.optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
            elif value is not None:
                scalars[f"{index}/{name}"] = value
    tensors |= {f"{_POST}{name}": value for name, value in states_of(coordinator.post_processors).items()}
    return {name: value.detach() for name, value in tensors.items()}, scalars


def restore(
    path: Path, tensors: dict[str, Tensor], scalars: Scalars, step: int, model: nn.Module, coordinator: Coordinator
) -> None:
    """Gives a training back what `state_of` took.

    Args:
        path: of the file that held it, among the checkpoints: the first one has the frozen weights.
        tensors: see `state_of`.
        scalars: see `state_of`.
        step: steps finished.
        model: of the training.
        coordinator: of the training.

    Raises:
        UserError: if it belongs to another model.
    """
    _load_model(path, tensors, model)
    state: dict[int, dict[str, Tensor | float]] = {}
    for key, value in {**_under("optimizer/", tensors), **scalars}.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    optimizer = coordinator.update.optimizer
    coordinator.update.skip(step)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    load_states(coordinator.post_processors, _under(_POST, tensors), f"the checkpoint {path}")


def steps_of(path: Path) -> int:
    """Steps finished at a checkpoint, by its name."""
    return int(path.stem.removeprefix("step-"))


def load_weights(path: Path, model: nn.Module, processors: Sequence[PostProcessor]) -> None:
    """Loads the weights of a checkpoint that are measured and published.

    Args:
        path: of the checkpoint.
        model: gets the weights.
        processors: of the run's configuration.

    Raises:
        UserError: see `Checkpoints.load`.
    """
    tensors, _ = _read(path)
    _load_model(path, tensors, model)
    load_states(processors, _under(_POST, tensors), f"the checkpoint {path}")
    assign_averaged_weights(model, processors)


def _load_model(path: Path, tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Loads a checkpoint's part of the model, and what it leaves out from the first checkpoint beside it."""
    state = _under("model/", tensors)
    if model.state_dict().keys() - state.keys():
        state = _under("model/", _read(min(path.parent.glob("step-*.safetensors")))[0]) | state
        if any(not parameter.requires_grad and name not in state for name, parameter in model.named_parameters()):
            raise UserError(
                f"{path} holds trained weights only, and the first checkpoint is gone: restore it. [checkpoint-no-first]"
            )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit the configured model: {str(error).splitlines()[-1]} [checkpoint-model]") from None


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        require_regular(path)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path) from error
    if header.get("format") != FORMAT or header.get("digest") != _digest(tensors, header):
        raise _damaged(path)
    return tensors, header


def _damaged(path: Path) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f"the checkpoint {path} is damaged: restore it. (`dpfed resume` continues from the previous one.) [checkpoint-damaged]"
    )


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _digest(tensors: dict[str, Tensor], header: dict[str, str]) -> str:
    """Of all that the file says: names, types, shapes and values of tensors, and the header but for the digest itself."""
    digest = hashlib.blake2b(digest_size=16)
    shapes = [[name, str(value.dtype), *value.shape] for name, value in sorted(tensors.items())]
    rest = {name: value for name, value in header.items() if name != "digest"}
    digest.update(json.dumps([rest, shapes], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
