"""What a data owner draws in a step: each draw serves one purpose, and dropout is the step's and the owner's own."""

from collections import Counter

import pytest
import torch

from dpfed.config import parse_config
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build


@pytest.fixture
def parts(tiny):
    tiny["bounding"] |= {"max_group_size": 3, "microbatch": 7}
    tiny["text_views"] = {"word_swap": 0.3}
    return build(parse_config(tiny), Randomness.from_seed(5))


def test_no_draw_of_a_record_is_used_twice(parts, monkeypatch):
    """Whether a record is drawn, whether a full group keeps it, its caption and its views are independent of each other."""
    made, per_record = Counter(), Randomness.per_record

    def watched(self, purpose, step, keys, columns):
        made.update((purpose, step, key) for key in keys.tolist())
        return per_record(self, purpose, step, keys, columns)

    worker = parts.learner.worker(Randomness.from_seed(5))
    monkeypatch.setattr(Randomness, "per_record", watched)
    worker.bounded_sum(3)
    assert set(made.values()) == {1}
    assert {purpose for purpose, step, _ in made if step == 3} == {"sample", "cap", "views", "caption", "text"}
    assert {(purpose, step) for purpose, step, _ in made if step != 3} == {("sample", 4), ("cap", 4)}  # made ahead


class Coin:
    """An engine that notes what the model would draw."""

    name = "coin"
    adds_whole_parts = True

    def __init__(self, model):
        self._model, self._size, self.seen = model, TrainableVector(model).numel, []

    def zeros(self):
        return torch.zeros(self._size, dtype=torch.float64)

    def add_clipped(self, batch, clip_norm, into):
        self.seen.append((self._model.training, torch.rand(()).item()))
        return torch.zeros(0)


def test_dropout_repeats_with_step_and_owner_only(parts):
    def drawn(rank, step):
        torch.rand(rank + step + 1)  # whatever was drawn before
        worker, coin = parts.with_learner(rank=rank, world_size=2).learner.worker(Randomness.from_seed(5)), Coin(parts.model)
        worker.engine = coin
        worker.bounded_sum(step)
        assert coin.seen and all(training for training, _ in coin.seen)
        return tuple(value for _, value in coin.seen[:3])

    parts.model.eval()  # as an evaluation may leave it
    every = {(rank, step): drawn(rank, step) for rank in (0, 1) for step in (0, 1, 2)}
    assert len(set(every.values())) == len(every)
    assert all(drawn(*place) == values for place, values in every.items())
