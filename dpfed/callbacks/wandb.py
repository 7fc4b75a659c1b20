"""Tracker for Weights & Biases: online, or offline in the run's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dpfed.callbacks.callback import RunInfo
from dpfed.callbacks.tracker import Picture, Rows, Tracker, sendable
from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically

_OFFLINE = ("offline", "dryrun")
_WRITTEN = "written-{}"  # file with the last step written offline


class WandB(Tracker):
    """A tracker that sends figures to Weights & Biases.

    A resumed run continues its W&B run. The tracker leaves out the machine's name and load, and the program, its
    arguments, output, packages and git repository.

    Args:
        project: Project at W&B; ``None``: the value of WANDB_PROJECT, or ``dpfed``.
        entity: User or team at W&B; ``None``: the value of WANDB_ENTITY, or the user's default.
        mode: Mode, ``online``, ``offline`` or ``disabled``; ``None``: the value of WANDB_MODE, or the mode that the command
            `wandb online` or `wandb offline` has set.
        id: Id of the W&B run; ``None``: derived from the dpfed run, so that a resumed run finds it.
        every: Number of steps between two rows of figures; ``None``: the tracker gets a row whenever metrics.jsonl gets a line.

    Raises:
        UserError: If the package wandb is missing or fails, nobody has logged in and the mode needs a login, or `every` is less
            than 1.
    """

    title = "Weights & Biases"
    package = "wandb"
    module = "wandb"

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: str | None = None,
        id: str | None = None,
        every: int | None = None,
    ) -> None:
        super().__init__(every)
        self._project = project or os.environ.get("WANDB_PROJECT") or "dpfed"
        self._entity, self._id = entity or os.environ.get("WANDB_ENTITY"), id
        # Read here: on a cluster, another process with another environment sends the figures.
        with self._accepting():
            self._mode = mode or os.environ.get("WANDB_MODE") or self._import().setup().settings.mode
        self._board: Any = None
        self._next = 0
        self._written: Path | None = None
        self._require_login()

    def _import(self) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # crash reports contain values from the stack
        return super()._import()

    def _require_login(self) -> None:
        """Raises an error if W&B lacks a needed login: W&B would ask for it in the middle of a run, or end the run."""
        if self._mode in (*_OFFLINE, "disabled"):
            return
        with self._accepting():
            known = self._import().login(prompt=False)
        if not known:
            raise UserError(
                "nobody has logged in to Weights & Biases on this machine: run `wandb login`, or set WANDB_MODE=offline to "
                "write into the run's folder. [tracker-login]"
            )

    def _open(self, run: RunInfo) -> None:
        wandb = self._import()
        self._require_login()
        offline = self._mode in _OFFLINE
        quiet = wandb.Settings(
            host="none",
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._board = wandb.init(
            project=self._project,
            entity=self._entity,
            name=run.name,
            id=self._id or run.identity or None,
            config=sendable(run.config),
            dir=os.environ.get("WANDB_DIR") or (run.folder and str(run.folder)),
            mode=self._mode,
            resume=None if offline else "allow",
            reinit="create_new",  # leaves any other open W&B run of the program unchanged
            settings=quiet,
        )
        self._next, self._written = self._board.step, None
        if offline and run.folder is not None:  # offline, W&B does not know which steps were written
            self._written = run.folder / "wandb" / _WRITTEN.format(self._board.id)
            if self._written.is_file():
                self._next = int(self._written.read_text()) + 1

    def _write(self, rows: Rows) -> None:
        for step, figures in rows.items():
            if step >= self._next:
                self._board.log({**figures, "_timestamp": float(step)}, step=step)  # hides the real time of a step
        if self._written is not None:
            write_atomically(self._written, str(max(self._next - 1, *rows)))

    def _add(self, card: Path | None, shown: list[Picture]) -> None:
        wandb = self._import()
        if shown:
            images = [wandb.Image(str(picture.path), caption=f"{picture.title}: {picture.text}") for picture in shown]
            self._board.log({"gallery": images, "_timestamp": float(self._last)}, step=max(self._last, self._board.step))
        if card is not None:
            artifact = wandb.Artifact(f"privacy-card-{self._board.id}", type="privacy-card")
            artifact.add_file(str(card))
            self._board.log_artifact(artifact)

    def _close(self, finished: bool) -> None:
        if self._board is not None:
            self._board.finish(exit_code=0 if finished else 1)
            self._board = None
