"""A run's model, taken out of the run.

Also here: a run's model on the Hugging Face hub: what `dpfed export --hub` writes, uploaded.

Also here: the image tower of a trained model as an ONNX file, for programs without torch.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.model_card import model_card
from dpfed.artifacts.view import results_in
from dpfed.config import ViewsConfig
from dpfed.data.views.images import ImageViews
from dpfed.errors import UserError
from dpfed.files.atomic import new_folder, write_atomically
from dpfed.models.contract import method_of
from dpfed.models.description import describe
from dpfed.models.folder import load_encoder, preprocessing_in
from dpfed.models.moments import features_of
from dpfed.paths import path_of


def export_model(
    folder: str | Path,
    dest: str | Path,
    hub: bool = False,
    license: str | None = None,
    onnx: bool = False,
) -> list[Path]:
    """Copies the model of a finished run; the copy has the time of copying.

    Args:
        folder: a run directory.
        dest: a folder to make; with `onnx`, a file.
        hub: with a page for the Hugging Face hub, ``README.md`` (`dpfed.artifacts.model_card`).
        license: of the weights, for that page.
        onnx: the image tower alone (`dpfed.artifacts.export`).

    Returns:
        The files that were written.

    Raises:
        UserError: if the run is not finished, or `dest` exists; or if options do not fit together.
    """
    run, dest = RunDirectory.open(folder), path_of(dest, "the destination")
    if not run.finished:
        raise UserError(f"{folder} is not finished: `dpfed resume {folder}` trains it to its end. [export-unfinished]")
    if os.path.lexists(dest):
        raise UserError(f"{dest} exists already; choose another destination or delete it first. [export-exists]")
    if onnx and hub:
        raise UserError("--onnx makes one file; --hub makes a folder with a whole model: choose one.")
    if license is not None and not hub:
        raise UserError("--license is for the page that --hub makes: add --hub, or leave it out. [export-license-unused]")
    page = model_card(run, license) if hub else None
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        if onnx:
            write_atomically(dest, lambda file: write_onnx(run.model, file))
        else:
            with new_folder(dest) as draft:
                shutil.copytree(run.model, draft, dirs_exist_ok=True)
                if page is not None:
                    (draft / "README.md").write_text(page, encoding="utf-8")
                for path in (draft, *draft.rglob("*")):
                    os.utime(path)  # when training ended tells how long its steps took, which no epsilon covers
    except OSError as error:
        raise UserError(f"cannot write {dest}: {error.strerror or error}. [export-unwritable]") from error
    return [dest] if onnx else sorted(dest.iterdir())


_REPO = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")


def push(
    folder: Path,
    repo: str,
    license: str | None,
    public: bool,
    agreed: Callable[[list[Path]], bool],
) -> str | None:
    """Uploads the model of a finished run with its privacy card.

    Args:
        folder: a run directory.
        repo: ``OWNER/NAME``; it is made, private or public, unless it is there.
        license: see `export_model`.
        public: everybody may see a repository that is made.
        agreed: is shown the files, and says whether they may be uploaded.

    Returns:
        The address of the commit; ``None``: not agreed, and nothing was sent.

    Raises:
        UserError: for a run without a privacy card or a guarantee, a wrong name, or if the hub refuses.
    """
    run = RunDirectory.open(folder)
    if not _REPO.fullmatch(repo):
        raise UserError(f"{repo} is not a repository of the hub: expected OWNER/NAME.")
    if run.finished and not (run.card.is_file() and results_in(run.results)["privacy"]["guarantee"]):
        raise UserError(f"{folder} has no privacy card with a guarantee: a model without one is not uploaded.")
    with tempfile.TemporaryDirectory() as draft:
        files = export_model(run.path, Path(draft, "model"), hub=True, license=license)
        from huggingface_hub import HfApi  # export_model refuses where it is missing

        page = Path(draft, "model", "README.md")
        page.write_text(page.read_text(encoding="utf-8").replace("OWNER/NAME", repo), encoding="utf-8")
        if not agreed(files):
            return None
        try:
            api = HfApi()
            api.create_repo(repo, private=not public, exist_ok=True)
            commit = api.upload_folder(repo_id=repo, folder_path=Path(draft, "model"), commit_message="Model and privacy card")
        except Exception as error:  # of the network, of the hub, of a token that is missing
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UserError(f"the hub refused {repo} ({reason}): log in with `hf auth login`.") from error
    return str(commit.commit_url)


_MOST_BYTES = 2**31 - 2**24  # a protocol buffer ends at 2 GiB; the graph takes its part


class _ImageTower(nn.Module):
    """From square pixels to features: normalisation is part of the graph."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = load_encoder(folder)
        self._plain = ImageViews(ViewsConfig(), preprocessing_in(folder)).plain
        self._features = method_of(self.model, features_of(self.model))

    def forward(self, pixels: Tensor) -> Tensor:
        """``(n, 3, size, size)`` uint8 -> ``(n, F)`` float32."""
        features: Tensor = self._features(self._plain(pixels))
        return features


def write_onnx(folder: Path, file: Path) -> None:
    """Writes what `Encoder.features` computes of square images: ``pixels`` (n, 3, size, size) uint8 to ``features`` (n, F).

    Args:
        folder: ``model/`` of a run.
        file: to write.

    Raises:
        UserError: without the packages, or for a model that no ONNX file can hold.
    """
    try:
        import onnxscript  # noqa: F401 torch.onnx needs it
    except ImportError as error:
        raise UserError(f"--onnx needs the package {error.name}: pip install 'dpfed[onnx]'.") from error
    tower = _ImageTower(folder).eval()
    if sum(value.nbytes for value in tower.state_dict().values()) > _MOST_BYTES:
        raise UserError(f"the model in {folder} is larger than the 2 GB that an ONNX file holds: export it without --onnx.")
    size = describe(folder)["image_size"]
    pixels = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    with torch.no_grad():
        torch.onnx.export(
            tower,
            (pixels,),
            str(file),
            input_names=["pixels"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            external_data=False,
            verbose=False,
        )
