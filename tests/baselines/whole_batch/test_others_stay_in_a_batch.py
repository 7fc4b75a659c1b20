"""What a record, or a pair of records, adds to the sum of a whole batch depends on no other record, also where gradients nearly
cancel: of the methods that clip smaller parts than a batch's gradient."""

import itertools

import pytest
import torch
from torch.nn.functional import normalize

from dpfed.baselines.noisy_statistics.record_gradients import StatisticsEngine
from dpfed.baselines.noisy_statistics.released_embeddings import ReleasedMoments
from dpfed.baselines.whole_batch import pair_engines
from dpfed.baselines.whole_batch.pair_engines import LogitEngine, SampleEngine
from dpfed.bounding.engines import GroupBatch
from tests.baselines.noisy_statistics.released_lab import SLOTS, in_slots, silent
from tests.bounding.engines.cancelling import KINDS, STEPS, in_steps, model_of, records
from tests.sparing import halved

MODELS = ("cnn", "two towers")
CLIPS = (0.1, 1e-5)
CASES = [(kind, bias) for kind in KINDS for bias in (0.0, 1e3)]
ENDS = [CASES[0], CASES[-1]]


def case(name, kind, count, bias):
    generator = torch.Generator().manual_seed(7)
    model = model_of(name, 0.2, bias)
    return model, records(kind, count, hasattr(model, "embed_text"), generator), generator


def with_strangers(views, strangers):
    """Strangers behind the first record, so that the others change places and neighbours; and where the others are then."""
    count = len(strangers["image"])
    joined = {name: torch.cat([view[:1], strangers[name], view[1:]]) for name, view in views.items()}
    return joined, [0, *range(1 + count, len(joined["image"]))]


def summed(engine, views, clip):
    """In steps of the grid; whole numbers, where an engine adds up such."""
    into = engine.zeros().long() if engine.adds_whole_parts else engine.zeros()
    engine.add_clipped(GroupBatch(views, [0, len(views["image"])]), in_steps(clip), into)
    return into


def tried(choices):
    """Half of the cases of the ends; the others are slow."""
    return [
        *halved(MODELS, choices, ENDS),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in itertools.product(MODELS, choices, CASES[1:-1])),
    ]


@pytest.mark.long
@pytest.mark.parametrize(("name", "statistics", "records_are"), tried(["embeddings", "moments"]))
def test_records_and_strangers_add_together_what_they_do_apart(name, statistics, records_are):
    kind, bias = records_are
    model, views, generator = case(name, kind, 13, bias)
    made = in_slots() if statistics == "embeddings" else ReleasedMoments(12, silent())
    noisy = normalize(torch.randn(SLOTS, 2, 16), dim=2) if statistics == "embeddings" else torch.rand(20, 16)
    clean, slots = [], []
    made.draw_slots = lambda count, step: torch.tensor(slots)

    def found(views, places):
        """The statistics before their noise, and the sums for each C, given the same noisy ones."""
        slots[:] = [place % SLOTS for place in places]
        made._noise.add_ = lambda exact, step: clean.append(exact.clone()) or noisy.clone()
        engine = StatisticsEngine(model, "fp32", made)
        return [*(summed(engine, views, clip) for clip in CLIPS), clean[-1]]

    alone = found(views, range(13))
    for count in (1, 2, 7):
        strangers = records("noise", count, "text" in views, generator)
        joined, _ = with_strangers(views, strangers)
        theirs = found(strangers, range(count))
        together = found(joined, [0, *range(count), *range(1, 13)])
        for one, other, both in zip(alone, theirs, together, strict=True):
            off = (both - one - other).abs().max()
            assert off <= 1e-12 if both.is_floating_point() else off == 0  # statistics, and exact sums
        assert together[0].any() or kind == "black"


@pytest.mark.long
@pytest.mark.parametrize(("name", "norms", "records_are"), tried(["exact", "bound"]))
def test_strangers_change_no_pairs_clipped_gradient(name, norms, records_are, monkeypatch):
    """The weights of all similarities but one are set to zero: what is left is the clipped gradient of one pair."""
    kind, bias = records_are
    model, views, generator = case(name, kind, 3, bias)
    wanted = [0, 0]

    def one_pair(similarities, temperature):
        weights = torch.zeros_like(similarities)
        weights[wanted[0], wanted[1], 0] = 1.0
        return weights

    monkeypatch.setattr(pair_engines, "contrastive_derivatives", one_pair)
    engine = LogitEngine(model, 16, norms, one_sided=True)
    for count in (1, 5):
        joined, places = with_strangers(views, records("noise", count, "text" in views, generator))
        for clip, pair in [(clip, pair) for clip in CLIPS for pair in ((0, 1), (2, 2))]:
            wanted[:] = pair
            alone = summed(engine, views, clip)
            wanted[:] = [places[record] for record in pair]
            assert (summed(engine, joined, clip) - alone).abs().max() < 1e-4  # of a step: float64
            assert alone.norm() <= STEPS


@pytest.mark.parametrize(("name", "norms", "records_are"), tried(["exact", "bound"]))
def test_a_batch_of_clipped_records_stays_in_its_ball(name, norms, records_are):
    kind, bias = records_are
    model, views, _ = case(name, kind, 6, bias)
    for clip in (*CLIPS, 1e-8):
        assert summed(SampleEngine(model, 6, norms), views, clip).norm() <= 6 * STEPS
