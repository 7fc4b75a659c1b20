"""What is measured of a configuration's own step, and that the simulator reads it."""

import time

import numpy as np
import pytest
import torch

from benchmarks import parts, throughput
from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.data.views.batches import ViewMaker
from dpfed.errors import UserError
from dpfed.training.worker import Worker


@pytest.mark.long
def test_the_parts_of_a_step_are_timed(tiny, monkeypatch):
    honest = ViewMaker.__call__

    def slow(self, indices, *rest):
        time.sleep(0.002 * len(indices))
        return honest(self, indices, *rest)

    monkeypatch.setattr(ViewMaker, "__call__", slow)
    figures = parts.of_run(parse_config(tiny), steps=2)
    assert ViewMaker.__call__ is slow and Worker.draw.__name__ == "draw"  # nothing of the timers is left
    one = figures["gradients"]["tiny"]
    assert 50 < one["views_per_second"] < 500 and one["records_per_second"] > 0 and one["decoded_per_second"] > 0
    assert not one["reads_ahead"]  # images of their size, on a CPU


def test_steps_over_private_records_are_not_timed(tiny, tmp_path):
    with StoreWriter(tmp_path / "private", name="mine", kind="image-text", size=16) as writer:
        for number in range(200):
            writer.add(RecordInput(str(number), np.full((16, 16, 3), number, np.uint8), ("a thing",)))
    tiny["data"]["path"] = str(tmp_path / "private")
    tiny["evaluation"] = {"split": "none"}
    with pytest.raises(UserError, match="not public"):
        parts.of_run(parse_config(tiny))


def test_a_file_of_the_throughput_has_what_the_simulator_reads(monkeypatch):
    monkeypatch.setattr(throughput, "COORDINATED", (10_000, 20_000))
    monkeypatch.setattr(throughput, "DECODED", 4)
    assert throughput.decoded_images(32) > 0 and throughput.made_views(32, 2, 4, torch.device("cpu")) > 0
    assert set(throughput.coordinator(torch.device("cpu"))) == {
        "noise_seconds_per_million",
        "bookkeeping_seconds_per_million",
        "commit_seconds_per_million",
        "checkpoint_seconds_per_million",
        "seconds_per_step",
    }
