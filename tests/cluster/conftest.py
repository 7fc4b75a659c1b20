"""A run of a few processes that several files' tests share."""

import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import parse_config
from tests.cluster.processes import Processes, command, pretrain

STEPS = 6


@pytest.fixture(scope="session")
def source(shapes, tmp_path_factory):
    """A configuration file of a run without evaluation."""
    towers = {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16}
    config = {
        "name": "faults",
        "data": {"source": "store", "path": str(shapes.path), "size": 16},
        "model": towers,
        "bounding": {"group_size": 4, "engine": "loop"},
        "privacy": {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 60, "steps": STEPS},
        "training": {"checkpoint_every": 2, "device": "cpu"},
        "evaluation": {"split": "none"},
    }
    path = tmp_path_factory.mktemp("source") / "config.toml"
    path.write_text(parse_config(config).dump())
    return path


@pytest.fixture(scope="session")
def undisturbed(source, tmp_path_factory):
    """A finished run of two processes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Processes(2, folder / "out", command, *pretrain(source, folder / "run")) as processes:
        assert processes.wait() == [0, 0], processes.text
        assert processes.output(1) == ""  # only the first one speaks
    return RunDirectory.open(folder / "run")
