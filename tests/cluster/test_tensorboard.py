"""Event files say what metrics.jsonl says, and nothing else."""

import struct
from pathlib import Path

import pytest

from cluster.tensorboard import TensorBoard
from dpfed.randomness import Randomness
from dpfed.run import RunDirectory

pytest.importorskip("tensorboardX")


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Reads event files independently of their writer: records of length, checksum, protocol buffer, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for file in folder.iterdir():
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            content = content[16 + length :]
    return found


@pytest.fixture
def run(tmp_path, tiny_config):
    return RunDirectory.create(tmp_path / "run", tiny_config, Randomness.from_seed(0))


def test_each_figure_arrives_at_its_step(run):
    with TensorBoard(run) as board:
        run.append(run.metrics, {"step": 2, "epsilon": 1.5, "learning_rate": 0.25})
        board()
        run.append(run.metrics, {"step": 4, "epsilon": None, "learning_rate": 0.5})
        run.append(run.metrics, {"step": 4, "evaluation": {"name": "image_to_text_R@10", "value": 0.75}})
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
