"""Tracker for TensorBoard: event files in the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpfed.callbacks.callback import RunInfo
from dpfed.callbacks.tracker import Picture, Rows, Tracker, sendable
from dpfed.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker):
    """A tracker that writes event files for TensorBoard.

    A resumed run adds a file. TensorBoard then ignores what earlier files say about steps that the resumed run shows again.
    The timestamps in the files are step numbers, because the duration of a step depends on the records that it sampled.

    Args:
        folder: Folder for the files of this run only; ``None``: ``tensorboard/`` in the run's folder.
        every: Number of steps between two rows of figures; ``None``: the tracker gets a row whenever metrics.jsonl gets a line.

    Raises:
        UserError: If the package tensorboard is missing, or `every` is less than 1.
    """

    title = "TensorBoard"
    package = "tensorboard"
    module = "torch.utils.tensorboard"

    def __init__(self, folder: str | Path | None = None, every: int | None = None) -> None:
        super().__init__(every)
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def _open(self, run: RunInfo) -> None:
        folder = self._folder or (run.folder and run.folder / "tensorboard")
        if folder is None:
            raise UserError("this training has no folder: give TensorBoard one, as in TensorBoard('boards'). [tracker-folder]")
        # Step 0 has the figures before training, which a run without a checkpoint measures again.
        self._writer = self._import().SummaryWriter(str(folder), purge_step=run.done + 1 if run.done else 0)
        if not run.done and (config := sendable(run.config)):
            lines = [f"| `{key}` | {value} |" for key, value in config.items()]
            self._writer.add_text("configuration", "\n".join(["| key | value |", "|---|---|", *lines]), 0, walltime=0)
        self._writer.flush()

    def _write(self, rows: Rows) -> None:
        assert self._writer is not None
        for step, figures in rows.items():
            for name, value in figures.items():
                self._writer.add_scalar(name, value, step, walltime=step)
        self._writer.flush()

    def _add(self, card: Path | None, shown: list[Picture]) -> None:
        import numpy as np
        from PIL import Image

        assert self._writer is not None
        if card is not None:
            self._writer.add_text("privacy card", card.read_text(encoding="utf-8"), self._last, walltime=self._last)
        for picture in shown:
            pixels = np.asarray(Image.open(picture.path).convert("RGB"))
            tag = f"{picture.title}/{picture.path.stem}"
            self._writer.add_image(tag, pixels, self._last, walltime=self._last, dataformats="HWC")

    def _close(self, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
