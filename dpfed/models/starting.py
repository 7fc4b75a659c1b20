"""Finds the weights that a model starts from, checks that they fit the model, and loads them.

Only `StartingWeights.load_into` imports torch, so all other functions report mistakes without waiting for torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.errors import UserError
from dpfed.files.reading import open_regular, read_text
from dpfed.files.toml_file import leaves
from dpfed.models.blueprints import CONFIG as CLIP_CONFIG
from dpfed.models.blueprints import WEIGHTS as CLIP_WEIGHTS
from dpfed.models.description import DESCRIPTION, HEAD, MOMENTS, WEIGHTS, Part, describe, read_file, weight_parts
from dpfed.models.options import ModelConfig
from dpfed.paths import path_of
from dpfed.schema.wording import shown

if TYPE_CHECKING:
    from torch import Tensor, nn

_EXPECTED = "the folder of a finished run, its model/, or a .safetensors file of weights"
# Keys of [model] that hold places of files, or that the weights do not depend on.
_NOT_OF_THE_ARCHITECTURE = ("architecture", "text", "weights", "digest", "start", "start_digest", "anchors", "anchor_count")
# Tensors of a model that hold settings of a run's objective.
_SETTINGS = ("log_scale", "fixed_temperature", "bias", "logit_scale", "logit_bias")
_OWN_OF_OPEN_CLIP = ("vision_cfg.image_size", "init_logit_bias")  # settings that each run chooses, in an open_clip description
_BLOCK = 1 << 20  # bytes that are hashed at a time
_SHOWN = 3  # largest number of differences that a message names


class MissingStart(UserError):
    """Raised if there is nothing at the path of the starting weights."""


@dataclass(frozen=True)
class StartingWeights:
    """A file of starting weights, as `find_start` returns it.

    Attributes:
        path: Path of the safetensors file; if a model has several files of weights, path of the first.
        digest: SHA-256 of the file at `path`, hexadecimal; for a file in a model folder, as its description states it.
        description: Description in the file's model folder (`describe`); ``None``: the file stands alone.
    """

    path: Path
    digest: str
    description: dict[str, Any] | None = None

    @property
    def trained(self) -> list[dict[str, Any]] | None:
        """The runs that made the weights, oldest first; ``None``: unknown."""
        return None if self.description is None else self.description.get("trained")

    def refuse_another_architecture(self, model: ModelConfig, idle: Container[str] = ()) -> None:
        """Refuses weights whose description is that of another model; weights without a description pass.

        Args:
            model: Configuration of the model that starts from the weights.
            idle: Keys without effect on that model, such as ``model.stem``.

        Raises:
            UserError: If the models differ (the message names the differences), or the weights come with heads of
                private moments, which cannot be trained further.
        """
        if self.description is None:
            return
        if MOMENTS in self.description:
            raise UserError(
                f"model.start: the heads in {self.path.parent} were computed from released moments (bounding.method = "
                "'moments'), and training cannot start from them: give the weights from which that run loaded its towers. "
                "[start-moments]"
            )
        there, here = self.description["model"], model.model_dump(mode="json")
        defaults = ModelConfig().model_dump(mode="json")
        keys = [key for key in here if key not in _NOT_OF_THE_ARCHITECTURE and f"model.{key}" not in idle]
        values = {f"model.{key}": (there.get(key, defaults[key]), here[key]) for key in keys}
        self._refuse({key: (shown(a), shown(b)) for key, (a, b) in values.items() if a != b})

    def refuse_other_towers(self, model_cfg: dict[str, Any]) -> None:
        """Refuses weights whose folder describes another open_clip architecture; weights without such a description pass.

        Args:
            model_cfg: Description of the architecture that starts from the weights, in open_clip's format.

        Raises:
            UserError: If the architectures differ; the message names the differences.
        """
        try:
            there = leaves(json.loads(read_text(self.path.with_name(CLIP_CONFIG)))["model_cfg"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the file stands alone: the tensors decide
            return
        here = leaves(json.loads(json.dumps(model_cfg)))
        keys = [key for key in here | there if key not in _OWN_OF_OPEN_CLIP]
        self._refuse({key: (shown(there.get(key)), shown(here.get(key))) for key in keys if there.get(key) != here.get(key)})

    def load_into(self, model: nn.Module) -> None:
        """Loads these weights into a model.

        The model keeps its temperature, bias and anchors, which come from the settings of the run.

        Args:
            model: Model as it was built, without adapters.

        Raises:
            UserError: If a file is missing, damaged or changed since `find_start`, holds other tensors than the model, or holds
                numbers that are not finite.
        """
        tensors = self._tensors()
        wanted = {name: value for name, value in model.state_dict().items() if not _is_setting(name)}
        given = {name: value for name, value in tensors.items() if not _is_setting(name)}
        there, here = ({name: _shape(value) for name, value in side.items()} for side in (given, wanted))
        names = [name for name in here | there if there.get(name) != here.get(name)]
        self._refuse({f"'{name}'": (there.get(name, "missing"), here.get(name, "missing")) for name in names})
        if not all(bool(value.isfinite().all()) for value in given.values()):
            raise UserError(f"model.start: {self.path} holds non-finite numbers: give other weights. [start-not-finite]")
        model.load_state_dict(given, strict=False)

    def refuse_damage(self) -> None:
        """Refuses files whose hash differs from the one in their description, or, without a description, from `digest`.

        Raises:
            UserError: If a file is missing, damaged or was replaced; the message names the file.
        """
        for _ in self._contents():
            pass

    def _contents(self) -> Iterator[tuple[Part, Path, bytes]]:
        """Yields each file of weights with its path and its whole content, after checking its hash."""
        for part, digest in self._parts():
            path = self.path.parent / part.file
            content = read_file(path)
            if hashlib.sha256(content).hexdigest() != digest:
                raise UserError(
                    f"model.start: {path} is damaged or was replaced: its hash differs from the one in {DESCRIPTION} or, for a "
                    "single file, from the one at the start of this command. Copy the file or its folder again. [start-changed]"
                )
            yield part, path, content

    def _tensors(self) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        tensors: dict[str, Tensor] = {}
        for part, path, content in self._contents():
            try:
                tensors |= {f"{part.prefix}{name}": tensor for name, tensor in load(content).items()}
            except SafetensorError as error:
                raise UserError(f"model.start: {path} is not a safetensors file: {error}. [start-safetensors]") from error
        return tensors

    def _parts(self) -> list[tuple[Part, str | None]]:
        """Lists the files of weights, each with its hash; a file that stands alone holds the whole model."""
        if self.description is None:
            return [(Part(self.path.name), self.digest)]
        first, *others = weight_parts(_model_in(self.description))
        return [(first, self.digest), *((part, self.description.get(part.hash)) for part in others)]

    def _refuse(self, differences: dict[str, tuple[str, str]]) -> None:
        """Refuses weights if there are any differences, given as name -> (value in the weights, value in this model)."""
        if not differences:
            return
        said = [
            f"{name} is {there} in the weights and {here} in this model"
            for name, (there, here) in list(differences.items())[:_SHOWN]
        ]
        more = f", and {len(differences) - _SHOWN} more differ" if len(differences) > _SHOWN else ""
        raise UserError(
            f"model.start: the weights in {self.path} are those of another model: {', '.join(said)}{more}. Set [model] as it "
            "was for these weights, or give other weights. [start-other-model]"
        )


def find_start(given: str | Path) -> StartingWeights:
    """Finds the weights at a path, and reads their description; computes the hash of a file that has no description.

    Args:
        given: Path of a run's directory, of a model folder, or of a file of weights.

    Raises:
        MissingStart: If there is nothing at the path.
        UserError: If the path is that of a run without a model, holds no weights or a damaged description, or cannot be read.
    """
    path = Path(os.path.expanduser(path_of(given, "model.start")))
    if os.path.isdir(path):
        run = os.path.isfile(path / "config.toml")
        folder = path / "model" if run else path
        if run and not os.path.isfile(folder / DESCRIPTION):
            raise UserError(
                f"model.start: {path} has no model yet: finish this run first, with `dpfed resume {path}` or the lines of "
                "Python that began it. [start-unfinished]"
            )
        return _in_folder(folder)
    if path.name in (WEIGHTS, CLIP_WEIGHTS, HEAD) and os.path.isfile(path.with_name(DESCRIPTION)):
        return _in_folder(path.parent)
    if not os.path.lexists(path):
        raise MissingStart(f"model.start: there is nothing at {path}; expected 'procedural', {_EXPECTED}. [start-nowhere]")
    if path.suffix != ".safetensors":
        raise UserError(f"model.start: {path} is not a .safetensors file; expected {_EXPECTED}. [start-file-type]")
    try:
        with open_regular(path) as file:
            digest = hashlib.sha256()
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise UserError(f"model.start: cannot read {path}: {error.strerror or error}. [start-unreadable]") from error
    return StartingWeights(path, digest.hexdigest())


def _in_folder(folder: Path) -> StartingWeights:
    if not os.path.isfile(folder / DESCRIPTION):
        raise UserError(
            f"model.start: {folder} does not contain a model (no {DESCRIPTION}); expected {_EXPECTED}. [start-no-model]"
        )
    description = describe(folder)
    if not isinstance(description["model"], dict) or not isinstance(description["sha256"], str):
        raise UserError(f"model.start: {folder / DESCRIPTION} is damaged: copy the folder again. [start-description]")
    names = [part.file for part in weight_parts(_model_in(description))]
    for name in names:
        if not os.path.isfile(folder / name):
            raise UserError(f"model.start: {folder} has no {name}: copy the folder again. [start-file-missing]")
    return StartingWeights(folder / names[0], description["sha256"], description)


def _model_in(description: dict[str, Any]) -> ModelConfig:
    """Returns a configuration with only the keys that decide the names of weight files; others may be of another version."""
    there = {key: description["model"].get(key) for key in ("kind", "image", "text")}
    return ModelConfig().model_copy(update={key: value for key, value in there.items() if isinstance(value, str)})


def _is_setting(name: str) -> bool:
    return name in _SETTINGS or name.rpartition(".")[2] == "anchors"


def _shape(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
