"""Writes and reads checkpoints: a safetensors file each, written atomically, checked by a digest, read without pickle.

The first checkpoint of a run holds the whole model. Later checkpoints hold only what can have changed since then: trained
parameters, buffers, and the states of the optimizer and of the post-processors. All of these follow from noisy sums, so a
checkpoint may leave the trust boundary. A checkpoint never holds a secret key.
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
_POST = "post/"  # prefix of the tensors that post-processors keep


@dataclass(frozen=True)
class Position:
    """Progress of a training run at a checkpoint or commit.

    Attributes:
        step: Number of finished steps.
        charged: Number of releases in the ledger at that time; a ledger with fewer releases has lost lines.
        fingerprint: Fingerprint of the plan.
    """

    step: int
    charged: int
    fingerprint: str


class DamagedCheckpoint(UserError):
    """Raised for a checkpoint that cannot be read, or whose content does not match its digest."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: Folder of the checkpoints; it is created when the first one is saved.
        keep: Number of checkpoints to keep in addition to the first one, at least 1.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def paths(self) -> list[Path]:
        """Returns the paths of all checkpoints, oldest first."""
        return _in(self._folder)

    def reserves(self) -> list[int]:
        """Returns how many steps were finished at each checkpoint from which a run may still have to resume, ascending.

        The first checkpoint is included while there are at most `keep` checkpoints in all. Later it is left out, because it is
        too many steps behind.
        """
        paths = self.paths()
        return [steps_of(path) for path in (paths[1:] if len(paths) > self._keep else paths)]

    def resume(
        self, model: nn.Module, coordinator: Coordinator, beyond: int | None = None
    ) -> tuple[Position | None, list[Path]]:
        """Restores the newest undamaged checkpoint.

        Args:
            model: Model of the training.
            coordinator: Coordinator of the training.
            beyond: Checkpoints with fewer finished steps than this number are not tried; ``None``: all checkpoints are tried.

        Returns:
            The position of the restored checkpoint, or ``None`` if only checkpoints of fewer than `beyond` steps are left; and
            the paths of the damaged checkpoints that were tried before.

        Raises:
            UserError: If all checkpoints are damaged, or an undamaged one cannot be restored (see `load`).
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
        """Writes a checkpoint and returns its path; then keeps only the first and the newest `keep` checkpoints.

        Raises:
            OSError: If the checkpoint cannot be written.
        """
        tensors, scalars = state_of(model, coordinator, whole=not self.paths())
        tensors = {name: value.cpu().contiguous().clone() for name, value in tensors.items()}
        header = {"format": FORMAT, "optimizer": json.dumps(scalars)}
        header |= {name: str(value) for name, value in vars(progress).items()}
        header["digest"] = _digest(tensors, header)
        make_folder(self._folder)
        path = self._folder / _file_of(progress.step)
        write_atomically(path, lambda draft: save_file(tensors, draft, metadata=header))
        # The first one stays: the trained model is compared with it, and it alone has the frozen weights.
        for old in self.paths()[1 : -self._keep]:
            old.unlink()
        return path

    def load(self, path: Path, model: nn.Module, coordinator: Coordinator) -> Position:
        """Restores model, optimizer and post-processors from a checkpoint.

        Raises:
            DamagedCheckpoint: If the checkpoint is damaged; then nothing is restored.
            UserError: If the checkpoint belongs to another model or to other post-processors, or if it needs frozen weights and
                the first checkpoint is gone or damaged.
        """
        tensors, header = _read(path)
        position = Position(int(header["step"]), int(header["charged"]), header["fingerprint"])
        restore(path, tensors, json.loads(header["optimizer"]), position.step, model, coordinator)
        return position


Scalars = dict[str, float | int]


def state_of(model: nn.Module, coordinator: Coordinator, whole: bool) -> tuple[dict[str, Tensor], Scalars]:
    """Returns the state of model, optimizer and post-processors that a resumed training needs.

    Args:
        model: Model of the training.
        coordinator: Coordinator of the training.
        whole: Whether frozen weights are included.

    Returns:
        The tensors, detached, not copied, and on their device; and the numbers in the optimizer's state that are not tensors.
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
    path: Path,
    tensors: dict[str, Tensor],
    scalars: Scalars,
    step: int,
    model: nn.Module,
    coordinator: Coordinator,
    folder: Path | None = None,
) -> None:
    """Restores a training from a state that `state_of` returned.

    Args:
        path: Path of the file that held the state, for messages.
        tensors: Tensors of the state; see `state_of`.
        scalars: Numbers of the optimizer's state; see `state_of`.
        step: Number of finished steps.
        model: Model of the training.
        coordinator: Coordinator of the training.
        folder: Folder of the checkpoints; default: the folder of `path`. Frozen weights that the state lacks are read from the
            first checkpoint.

    Raises:
        UserError: If the state belongs to another model or to other post-processors, or if it lacks frozen weights and the
            first checkpoint is gone or damaged.
    """
    _load_model(path, tensors, model, folder or path.parent)
    state: dict[int, dict[str, Tensor | float]] = {}
    for key, value in {**_under("optimizer/", tensors), **scalars}.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    optimizer = coordinator.update.optimizer
    coordinator.update.skip(step)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    load_states(coordinator.post_processors, _under(_POST, tensors), f"the saved state {path}")


def _in(folder: Path) -> list[Path]:
    """Returns the paths of the checkpoints in a folder, sorted; copies such as `step-00000002 (1).safetensors` are left out."""
    return sorted(path for path in folder.glob("step-*.safetensors") if path.stem.removeprefix("step-").isdecimal())


def _file_of(steps: int) -> str:
    return f"step-{steps:08d}.safetensors"


def steps_of(path: Path) -> int:
    """Returns the number of steps finished at a checkpoint, from its file name."""
    return int(path.stem.removeprefix("step-"))


def load_weights(path: Path, model: nn.Module, processors: Sequence[PostProcessor]) -> None:
    """Loads those weights of a checkpoint that are measured and published: the averaged weights, if the run averages weights.

    Args:
        path: Path of the checkpoint.
        model: Model that gets the weights.
        processors: Post-processors that the run's configuration names.

    Raises:
        UserError: If the checkpoint is damaged, belongs to another model or to other post-processors, or needs frozen weights
            and the first checkpoint is gone or damaged.
    """
    tensors, _ = _read(path)
    _load_model(path, tensors, model, path.parent)
    load_states(processors, _under(_POST, tensors), f"the checkpoint {path}")
    assign_averaged_weights(model, processors)


def _load_model(path: Path, tensors: dict[str, Tensor], model: nn.Module, folder: Path) -> None:
    """Loads the model's weights from a saved state, and weights that the state lacks from the first checkpoint in a folder."""
    state = _under("model/", tensors)
    if model.state_dict().keys() - state.keys():
        state = _under("model/", _read_first(path, min(_in(folder)))) | state
        if any(not parameter.requires_grad and name not in state for name, parameter in model.named_parameters()):
            raise UserError(
                f"{path} holds trained weights only, and the first checkpoint, which has the frozen ones, is gone: restore "
                f"{folder / _file_of(0)}. [checkpoint-no-first]"
            )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"{path} does not fit the configured model: change the model back. {str(error).splitlines()[-1]} [checkpoint-model]"
        ) from None


def _read_first(path: Path, first: Path) -> dict[str, Tensor]:
    """Returns the tensors of the first checkpoint, which another saved state needs; no other checkpoint can replace it."""
    try:
        return _read(first)[0]
    except DamagedCheckpoint as error:
        if path == first:
            raise
        raise UserError(
            f"{path} holds trained weights only, and the first checkpoint, which has the frozen ones, is damaged: restore "
            f"{first}. [checkpoint-first-damaged]"
        ) from error


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
    """Returns the digest of a file's content: names, types, shapes and values of tensors, and the header without the digest."""
    digest = hashlib.blake2b(digest_size=16)
    shapes = [[name, str(value.dtype), *value.shape] for name, value in sorted(tensors.items())]
    rest = {name: value for name, value in header.items() if name != "digest"}
    digest.update(json.dumps([rest, shapes], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
