"""TensorBoard's view of a run: what metrics.jsonl says, as event files beside it."""

from __future__ import annotations

import shutil
from types import TracebackType

from dpfed.runs.directory import RunDirectory
from dpfed.training.coordinator import StepSummary

_SHOWN = ("loss", "clip_rate", "norm")  # of a phase


class TensorBoard:
    """Copies new lines of a run's metrics.jsonl into ``tensorboard/``; call it after each step. A context manager.

    It holds what that file holds, nothing more. A resumed run writes it anew. Without tensorboardX (Ray Train installs it) it
    does nothing.

    Args:
        run: on the machine of rank 0.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run, self._seen = run, 0
        folder = run.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            self._writer = None
        else:
            self._writer = SummaryWriter(str(folder))

    def __call__(self, summary: StepSummary | None = None) -> None:
        """Copies what is new."""
        if self._writer is None:
            return
        lines = self._run.metric_lines()
        for line in lines[self._seen :]:
            for name, value in _scalars(line).items():
                # Without a time of its own an event gets that of the clock, and steps of private records would be timed.
                self._writer.add_scalar(name, value, line["step"], walltime=line["step"])
        self._seen = len(lines)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self()
        if self._writer is not None:
            self._writer.close()


def _scalars(line: dict) -> dict[str, float]:
    if "evaluation" in line:
        name = line["evaluation"]["name"].replace("@", "_at_")  # R@10: TensorBoard takes no @ in a name
        return {f"evaluation/{name}": line["evaluation"]["value"]}
    figures = {f"training/{name}": value for name, value in line.items() if name not in ("step", "phase")}
    figures |= {f"progress/{name}": line["phase"][name] for name in _SHOWN if "phase" in line}
    return {name: value for name, value in figures.items() if value is not None}
