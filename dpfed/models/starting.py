"""Weights that a model starts from: where they are, whether they are of the same model, and how they get into it.

All but `StartingWeights.load_into` does without torch, so that a mistake is answered at once.
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
# Of [model]: where files are, and what the weights do not depend on.
_NOT_OF_THE_ARCHITECTURE = ("architecture", "text", "weights", "digest", "start", "start_digest", "anchors", "anchor_count")
# Settings of a run's own objective and normalisation, which live in the model.
_SETTINGS = ("log_scale", "fixed_temperature", "bias", "logit_scale", "logit_bias")
_OWN_OF_OPEN_CLIP = ("vision_cfg.image_size", "init_logit_bias")  # likewise, in its description
_BLOCK = 1 << 20  # bytes that are hashed at a time
_SHOWN = 3  # differences that a message names


class MissingStart(UserError):
    """There is nothing where the starting weights should be."""


@dataclass(frozen=True)
class StartingWeights:
    """A file of weights, found.

    Attributes:
        path: of the safetensors file; in a folder of a timm encoder, of the first of two.
        digest: its SHA-256, hexadecimal.
        description: what its model folder says (`describe`); ``None``: the file stands alone.
    """

    path: Path
    digest: str
    description: dict[str, Any] | None = None

    @property
    def trained(self) -> list[dict[str, Any]] | None:
        """The runs that made the weights, oldest first; ``None``: nothing says which."""
        return None if self.description is None else self.description.get("trained")

    def refuse_another_architecture(self, model: ModelConfig, idle: Container[str] = ()) -> None:
        """Refuses weights of another model, as far as their folder says what model it is.

        Args:
            model: that starts from them.
            idle: keys such as ``model.stem``, that have no effect on it.

        Raises:
            UserError: naming what differs.
        """
        if self.description is None:
            return
        if MOMENTS in self.description:
            raise UserError(
                f"model.start: the heads in {self.path.parent} were released by private moments, and training cannot start "
                "from these: start from the towers below them. [start-moments]"
            )
        there, here = self.description["model"], model.model_dump(mode="json")
        defaults = ModelConfig().model_dump(mode="json")
        keys = [key for key in here if key not in _NOT_OF_THE_ARCHITECTURE and f"model.{key}" not in idle]
        values = {f"model.{key}": (there.get(key, defaults[key]), here[key]) for key in keys}
        self._refuse({key: (shown(a), shown(b)) for key, (a, b) in values.items() if a != b})

    def refuse_other_towers(self, model_cfg: dict[str, Any]) -> None:
        """Refuses the weights of another open_clip architecture, as far as their folder describes it.

        Raises:
            UserError: naming what differs.
        """
        try:
            there = leaves(json.loads(read_text(self.path.with_name(CLIP_CONFIG)))["model_cfg"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the file stands alone: the tensors decide
            return
        here = leaves(json.loads(json.dumps(model_cfg)))
        keys = [key for key in here | there if key not in _OWN_OF_OPEN_CLIP]
        self._refuse({key: (shown(there.get(key)), shown(here.get(key))) for key in keys if there.get(key) != here.get(key)})

    def load_into(self, model: nn.Module) -> None:
        """Gives a model these weights. Temperature, bias and anchors stay the model's own: a run's objective sets them.

        Args:
            model: as it is built, without adapters.

        Raises:
            UserError: if the file is damaged, is another one than was found, or holds other tensors than the model.
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
        """Refuses files that are not those that their description names.

        Raises:
            UserError: naming the file.
        """
        for _ in self._contents():
            pass

    def _contents(self) -> Iterator[tuple[Part, Path, bytes]]:
        """The files of weights, whole."""
        for part, digest in self._parts():
            path = self.path.parent / part.file
            content = read_file(path)
            if hashlib.sha256(content).hexdigest() != digest:
                raise UserError(f"model.start: {path} is damaged, or not what its {DESCRIPTION} describes. [start-changed]")
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
        """The files of weights, each with its hash; one that stands alone is the whole model."""
        if self.description is None:
            return [(Part(self.path.name), self.digest)]
        first, *others = weight_parts(_model_in(self.description))
        return [(first, self.digest), *((part, self.description.get(part.hash)) for part in others)]

    def _refuse(self, differences: dict[str, tuple[str, str]]) -> None:
        """Refuses weights of which something is one thing there and another one here."""
        if not differences:
            return
        said = [f"{name} is {there} there and {here} here" for name, (there, here) in list(differences.items())[:_SHOWN]]
        more = f", and {len(differences) - _SHOWN} more differ" if len(differences) > _SHOWN else ""
        raise UserError(
            f"model.start: the weights in {self.path} are those of another model: {', '.join(said)}{more}. Set [model] as it "
            "was, or give other weights. [start-other-model]"
        )


def find_start(given: str | Path) -> StartingWeights:
    """Finds the weights that a path means; reads no more than what describes them, or, of a file alone, its hash.

    Args:
        given: a run's directory, a model folder, or a file of weights.

    Raises:
        MissingStart: if nothing is there.
        UserError: for a place where there are no weights, or a damaged description.
    """
    path = Path(os.path.expanduser(path_of(given, "model.start")))
    if os.path.isdir(path):
        run = os.path.isfile(path / "config.toml")
        folder = path / "model" if run else path
        if run and not os.path.isfile(folder / DESCRIPTION):
            raise UserError(f"model.start: {path} has no model yet: `dpfed resume {path}` finishes it. [start-unfinished]")
        return _in_folder(folder)
    if path.name in (WEIGHTS, CLIP_WEIGHTS, HEAD) and os.path.isfile(path.with_name(DESCRIPTION)):
        return _in_folder(path.parent)
    if not os.path.lexists(path):
        raise MissingStart(f"model.start: there is nothing at {path}; expected 'procedural', {_EXPECTED}. [start-nowhere]")
    try:
        with open_regular(path) as file:
            digest = hashlib.sha256()
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise UserError(f"model.start: cannot read {path}: {error.strerror or error}. [start-unreadable]") from error
    if path.suffix != ".safetensors":
        raise UserError(f"model.start: {path} is not a .safetensors file; expected {_EXPECTED}. [start-file-type]")
    return StartingWeights(path, digest.hexdigest())


def _in_folder(folder: Path) -> StartingWeights:
    if not os.path.isfile(folder / DESCRIPTION):
        raise UserError(f"model.start: {folder} holds no model (no {DESCRIPTION}); expected {_EXPECTED}. [start-no-model]")
    description = describe(folder)
    if not isinstance(description["model"], dict) or not isinstance(description["sha256"], str):
        raise UserError(f"model.start: {folder / DESCRIPTION} is damaged: copy the folder again. [start-description]")
    names = [part.file for part in weight_parts(_model_in(description))]
    for name in names:
        if not os.path.isfile(folder / name):
            raise UserError(f"model.start: {folder} has no {name}: copy the folder again. [start-file-missing]")
    return StartingWeights(folder / names[0], description["sha256"], description)


def _model_in(description: dict[str, Any]) -> ModelConfig:
    """What of a description says where its weights are; the rest of it may be of another version."""
    there = {key: description["model"].get(key) for key in ("kind", "image", "text")}
    return ModelConfig().model_copy(update={key: value for key, value in there.items() if isinstance(value, str)})


def _is_setting(name: str) -> bool:
    return name in _SETTINGS or name.rpartition(".")[2] == "anchors"


def _shape(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
