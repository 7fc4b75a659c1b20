"""The image tower of a trained model as an ONNX file, for programs without torch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from dpfed.config import ViewsConfig
from dpfed.data.views.images import ImageViews
from dpfed.errors import UserError
from dpfed.models.contract import method_of
from dpfed.models.description import describe
from dpfed.models.folder import load_encoder, preprocessing_in
from dpfed.models.moments import features_of

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
