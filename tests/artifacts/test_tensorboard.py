"""Event files say what metrics.jsonl says, and nothing else."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.tensorboard import TensorBoard
from dpfed.config import parse_config
from dpfed.evaluation.measured import Evaluation
from dpfed.privacy.randomness import Randomness

pytest.importorskip("tensorboardX")


def events(folder: Path) -> Iterator[Any]:
    """Reads event files independently of their writer: records of length, checksum, protocol buffer, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for file in folder.iterdir():
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    return {(value.tag, event.step): value.simple_value for event in events(folder) for value in event.summary.value}


@pytest.fixture
def run(tmp_path, tiny_config):
    return RunDirectory.create(tmp_path / "run", tiny_config, Randomness.from_seed(0))


def test_each_figure_arrives_at_its_step(run):
    with TensorBoard(run) as board:
        run.append(run.metrics, {"step": 2, "epsilon": 1.5, "learning_rate": 0.25})
        board()
        run.append(run.metrics, {"step": 4, "epsilon": None, "learning_rate": 0.5})
        run.append(
            run.metrics,
            {"step": 4, "evaluation": Evaluation("image_to_text_R@10", 0.75, "trained", "test", "cosine", 4).facts()},
        )
    assert scalars(run.path / "tensorboard") == {
        ("training/epsilon", 2): 1.5,
        ("training/learning_rate", 2): 0.25,
        ("training/learning_rate", 4): 0.5,
        ("evaluation/image_to_text_R_at_10", 4): 0.75,
    }


def test_a_resumed_run_shows_nothing_that_it_took_back(run):
    for step in (2, 4, 6):
        run.append(run.metrics, {"step": step, "learning_rate": 1.0})
    with TensorBoard(run):
        pass
    run.rewind_metrics(4)
    with TensorBoard(run):
        run.append(run.metrics, {"step": 5, "learning_rate": 2.0})
    steps = {step: value for (_, step), value in scalars(run.path / "tensorboard").items()}
    assert steps == {2: 1.0, 4: 1.0, 5: 2.0}


def test_raw_figures_are_not_shown(run):
    with TensorBoard(run) as board:
        run.append(run.metrics, {"step": 1, "learning_rate": 0.5})
        run.append_diagnostics(1, {"median_norm": 3.0, "records": 60})
        board()
    assert scalars(run.path / "tensorboard") == {("training/learning_rate", 1): 0.5}


def test_no_step_is_timed(run):
    """How long a step takes depends on which records it drew."""
    with TensorBoard(run) as board:
        for step in (1, 2):
            run.append(run.metrics, {"step": step, "learning_rate": 0.5})
            board()
    timed = {event.step: event.wall_time for event in events(run.path / "tensorboard") if event.summary.value}
    assert timed == {1: 1.0, 2: 2.0}
    assert {event.wall_time for event in events(run.path / "tensorboard") if not event.summary.value} == {0.0}
    assert [file.name for file in (run.path / "tensorboard").iterdir()] == ["events.out.tfevents.0"]


def test_every_run_has_it_and_watchers_see_the_same_figures(tmp_path, tiny):
    """One machine and a simulated federation; tests/cluster has the others."""
    from dpfed.federation.simulated import Simulation
    from dpfed.federation.simulation import simulate
    from dpfed.progress import Silent
    from dpfed.runs.pretraining import pretrain

    class Board(Silent):
        def __init__(self):
            self.told = {}

        def figures(self, step, values):
            self.told |= {(name, step): pytest.approx(value) for name, value in values.items()}

    tiny["privacy"] |= {"steps": 2}
    tiny_config = parse_config(tiny)
    one, other = Board(), Board()
    runs = [
        (pretrain(tiny_config, tmp_path / "one", one), one),
        (simulate(tiny_config, tmp_path / "two", Simulation(sites=2), other), other),
    ]
    for run, board in runs:
        assert scalars(run.path / "tensorboard") == board.told and len(board.told) >= 2 * 3
