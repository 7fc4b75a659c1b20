"""TensorBoard's view of a run: what metrics.jsonl says, as event files beside it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.training.coordinator import StepSummary

if TYPE_CHECKING:
    from tensorboardX.record_writer import RecordWriter

_NAME = "events.out.tfevents.0"  # others have the second and the machine's name in it
_SHOWN = ("loss", "clip_rate", "norm")  # of a phase


class TensorBoard:
    """Copies new lines of a run's metrics.jsonl into ``tensorboard/``; call it after each step. A context manager.

    It holds what that file holds, nothing more. A resumed run writes it anew. Without tensorboardX (``dpfed[tensorboard]``, and
    Ray Train installs it) it does nothing, and it ends where it cannot be written: it is a copy, and the run says why it cannot
    continue.

    Args:
        run: the run, on the machine of its coordinator.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run, self._seen = run, 0
        self._file: RecordWriter | None = None
        folder = run.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            from tensorboardX.record_writer import RecordWriter
        except ImportError:
            return
        with self._if_possible():
            folder.mkdir()
            self._file = RecordWriter(str(folder / _NAME))
            self._write(file_version="brain.Event:2")

    def __call__(self, summary: StepSummary | None = None) -> None:
        """Copies what is new."""
        with self._if_possible():
            self._copy()

    def _copy(self) -> None:
        if self._file is None:
            return
        lines = self._run.metric_lines()
        for line in lines[self._seen :]:
            for name, value in scalars(line).items():
                # Without a time of its own an event gets that of the clock, and steps of private records would be timed.
                figure = {"value": [{"tag": name, "simple_value": value}]}
                self._write(step=line["step"], wall_time=line["step"], summary=figure)
        self._seen = len(lines)
        self._file.flush()

    def _write(self, **event: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        assert self._file is not None  # the caller looked
        self._file.write(Event(**event).SerializeToString())

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self()
        with self._if_possible():
            if self._file is not None:
                self._file.close()

    @contextlib.contextmanager
    def _if_possible(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._file = None


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """The figures of a line of metrics.jsonl, by names such as ``training/epsilon``."""
    if "evaluation" in line:
        name = line["evaluation"]["name"].replace("@", "_at_")  # R@10: TensorBoard takes no @ in a name
        return {f"evaluation/{name}": line["evaluation"]["value"]}
    figures = {f"training/{name}": value for name, value in line.items() if name not in ("step", "phase")}
    figures |= {f"progress/{name}": line["phase"][name] for name in _SHOWN if "phase" in line}
    return {name: value for name, value in figures.items() if value is not None}
