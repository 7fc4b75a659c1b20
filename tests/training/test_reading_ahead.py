"""Reading ahead: the same sums to the bit, at most two microbatches early, errors where they belong, no thread left."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.data.views.batches import ReadAhead
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import Parts, build
from tests.patience import until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of JPEG files."""
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("stores") / "files"
    with StoreWriter(path, name="files", kind="image-text") as writer:
        for row in range(240):
            buffer = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (24, 30, 3), dtype=np.uint8)).save(buffer, "JPEG")
            writer.add(RecordInput(str(row), buffer.getvalue(), (f"picture {row}",), split="train" if row < 200 else "test"))
    return path


@pytest.fixture
def parts(tiny: dict, files: Path) -> Parts:
    tiny["data"]["path"] = str(files)
    tiny["bounding"]["microbatch"] = 12  # about five in a step
    return build(parse_config(tiny), Randomness.from_seed(1))


@pytest.mark.long
@pytest.mark.parametrize("steps", [[0, 1, 2, 3, 4, 5], [2, 2, 0, 5, 4]], ids=["in order", "in any order"])
def test_sums_are_the_same_to_the_bit(parts: Parts, steps: list[int]) -> None:
    ahead, plain = (parts.learner.worker(Randomness.from_seed(2)) for _ in range(2))
    plain._prefetch_images = lambda *_: None
    for step in steps:
        plain._drawn_ahead = None  # draws afresh
        assert torch.equal(ahead.bounded_sum(step).values, plain.bounded_sum(step).values.clone())


@pytest.mark.parametrize("beside", [False, True])
def test_a_gpu_gets_its_last_pass_before_the_host_draws_the_next_step(parts: Parts, beside: bool, monkeypatch) -> None:
    monkeypatch.setattr("dpfed.training.worker._computes_beside_the_host", lambda device: beside)
    worker, events = parts.learner.worker(Randomness.from_seed(2)), []
    add_clipped, draw_next = worker.engine.add_clipped, worker._prefetch
    worker.engine.add_clipped = lambda *given: events.append("pass") or add_clipped(*given)
    worker._prefetch = lambda step, *given, **named: events.append("draw") or draw_next(step, *given, **named)
    total = worker.bounded_sum(1).values
    assert events.count("draw") == 1 and events.index("draw") == len(events) - (1 if beside else 2)
    assert torch.equal(total, parts.learner.worker(Randomness.from_seed(2)).bounded_sum(1).values)


@pytest.mark.parametrize("steps", [[0, 1, 2], [4, 5], [1, 3, 2]], ids=["in order", "the last two", "in any order"])
def test_beside_a_gpus_pass_the_next_steps_first_views_are_made_once(parts: Parts, steps: list[int], monkeypatch) -> None:
    monkeypatch.setattr("dpfed.training.worker._computes_beside_the_host", lambda device: True)
    worker, made, passes = parts.learner.worker(Randomness.from_seed(2)), [], []
    views, add_clipped = worker.views, worker.engine.add_clipped
    worker.views = lambda records, randomness, step, device: made.append(step) or views(records, randomness, step, device)
    worker.engine.add_clipped = lambda *given: passes.append(len(made)) or add_clipped(*given)
    sums = []
    for step in steps:
        sums.append(worker.bounded_sum(step).values.clone())
        ahead = step + 1 if step < 5 else None
        assert worker._made_ahead is None if ahead is None else worker._made_ahead[0] == ahead == made[-1]
    for number, step in enumerate(steps):
        if number + 1 < len(steps) and steps[number + 1] == step + 1:  # none is made a second time
            assert made.count(step + 1) == len(worker.draw(step + 1).microbatches(12))
        assert torch.equal(sums[number], parts.learner.worker(Randomness.from_seed(2)).bounded_sum(step).values)


def test_only_the_next_step_and_no_step_after_the_last_is_begun(parts: Parts) -> None:
    worker = parts.learner.worker(Randomness.from_seed(2))
    reading = worker.views._read
    worker.bounded_sum(3)
    draw = worker.draw(4)
    wanted = [draw.between(*groups) for groups in draw.microbatches(12)]
    begun = [indices for indices, _ in reading._begun]
    assert len(begun) == 2 and all(map(np.array_equal, [*begun, *reading._later], wanted))
    worker.bounded_sum(5)  # of six: the last
    assert not reading._begun and not reading._later


def test_what_was_expected_is_read_two_ahead_and_once() -> None:
    asked: list[int] = []
    allowed = threading.Semaphore(0)

    def read(indices: np.ndarray) -> torch.Tensor:
        allowed.acquire()
        asked.append(int(indices[0]))
        return torch.from_numpy(indices)

    reading = ReadAhead(read)
    reading.prefetch([np.array([number]) for number in range(5)])
    for _ in range(20):
        allowed.release()
    until(lambda: len(asked) == 2, 10)
    time.sleep(0.05)
    assert asked == [0, 1]  # though it might have read them all
    assert [int(reading(np.array([number]))) for number in range(5)] == list(range(5)) == asked
    reading.prefetch([np.array([7]), np.array([8])])
    until(lambda: 7 in asked, 10)
    reading.prefetch([np.array([7]), np.array([9])])  # what is begun already and still wanted is not read twice
    assert [int(reading(np.array([number]))) for number in (3, 7, 9)] == [3, 7, 9]  # 3 was not expected at all
    assert asked.count(7) == 1


def test_a_threads_error_surfaces_and_the_next_step_goes_on(parts: Parts) -> None:
    worker, plain = (parts.learner.worker(Randomness.from_seed(2)) for _ in range(2))
    reading, failing = worker.views._read, [True]
    read = reading._read

    def fail(indices: np.ndarray) -> torch.Tensor:
        if failing[0] and threading.current_thread() is not threading.main_thread():
            raise OSError("the disk is gone")
        return read(indices)

    reading._read = fail
    with pytest.raises(OSError, match="the disk is gone"):
        worker.bounded_sum(0)
    failing[0] = False
    assert torch.equal(worker.bounded_sum(0).values, plain.bounded_sum(0).values)


def test_rows_that_are_alike_are_not_taken_for_each_other() -> None:
    """Neither their number, nor the first of them, nor their order may stand for all."""
    for begun, asked in (([1, 2, 3], [1, 2, 4]), ([1, 2, 3], [1, 2]), ([1, 2, 3], [3, 2, 1]), ([1, 2], [1, 2, 3])):
        reading = ReadAhead(torch.from_numpy)
        reading.prefetch([np.array(begun), np.array(asked)])
        assert reading(np.array(asked)).tolist() == asked
        reading.prefetch([np.array(asked)])  # what was begun for others is not kept for these
        assert reading(np.array(asked)).tolist() == asked
