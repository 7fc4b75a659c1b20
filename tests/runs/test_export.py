"""A model that leaves its run tells nothing of how long training took."""

import os

from dpfed.config import parse_config
from dpfed.privacy.randomness import Randomness
from dpfed.runs.directory import RunDirectory
from dpfed.runs.export import export_model


def test_a_copy_has_none_of_the_times_of_the_run(tmp_path):
    config = parse_config({"name": "short", "privacy": {"epsilon": 8.0}})
    run = RunDirectory.create(tmp_path / "run", config, Randomness.from_seed(0))
    (run.model / "inner").mkdir(parents=True)
    for path in (run.results, run.model / "weights", run.model / "inner" / "words"):
        path.write_text("{}")
    long_ago = 1_000_000_000
    for path in (*run.model.rglob("*"), run.model):
        os.utime(path, (long_ago, long_ago))
    export_model(run.path, tmp_path / "out")
    copied = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert len(copied) == 4
    assert all(path.stat().st_mtime > long_ago + 1 and path.stat().st_atime > long_ago + 1 for path in copied)
