"""Retrieval against sorted lists: several captions for an image, several images for a caption, and ties."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpfed.evaluation.retrieval import chance_of_recall, ranks, retrieval_metrics, right_pairs


def naive_ranks(query, candidate, right):
    """1-based ranks by sorting, where every wrong candidate that ties stands ahead of the right ones, which do not compete."""
    query, candidate = (
        z.double().numpy() / np.linalg.norm(z.double().numpy(), axis=1, keepdims=True) for z in (query, candidate)
    )
    places = []
    for q, row in enumerate(np.round(query @ candidate.T, 9)):
        order = sorted(range(len(row)), key=lambda c: (-row[c], (q, c) in right))
        best = next(c for c in order if (q, c) in right)
        places.append(1 + sum((q, c) not in right for c in order[: order.index(best)]))
    return np.array(places)


def expected_metrics(image_z, text_z, pairs_image, pairs_text):
    pairs = set(zip(pairs_image.tolist(), pairs_text.tolist(), strict=True))
    both = {
        "image_to_text": naive_ranks(image_z, text_z, pairs),
        "text_to_image": naive_ranks(text_z, image_z, {(t, i) for i, t in pairs}),
    }
    out = {}
    for direction, values in both.items():
        out |= {f"{direction}_R@{k}": (values <= k).mean() for k in (1, 5, 10)}
    return out


def one_to_many(n=80, most=4, noise=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    owner = torch.arange(n).repeat_interleave(torch.randint(1, most + 1, (n,), generator=g))
    owner = owner[torch.randperm(len(owner), generator=g)]
    image_z = torch.randn(n, 8, generator=g)
    return image_z, image_z[owner] + noise * torch.randn(len(owner), 8, generator=g), owner, torch.arange(len(owner))


def many_to_many(n=60, m=45, extra=80, levels=None, seed=0):
    """Random pairs, at least one for every image and text, some of them named twice, in any order."""
    g = torch.Generator().manual_seed(seed)
    images = torch.cat([torch.arange(n), torch.randint(n, (m + extra,), generator=g)])
    texts = torch.cat([torch.randint(m, (n,), generator=g), torch.arange(m), torch.randint(m, (extra,), generator=g)])
    order = torch.randint(len(images), (len(images),), generator=g).unique()
    order = torch.cat([torch.randperm(len(images), generator=g), order])
    if levels is None:
        image_z, text_z = torch.randn(n, 4, generator=g), torch.randn(m, 4, generator=g)
    else:
        image_z, text_z = (torch.randint(1, levels, (count, 2), generator=g).float() for count in (n, m))
    return image_z, text_z, images[order], texts[order]


@pytest.mark.parametrize("most", [1, 5])
def test_equals_sorting_with_several_captions_for_an_image(most):
    given = one_to_many(most=most)
    expected = expected_metrics(*given)
    assert 0.1 < expected["image_to_text_R@1"] < 0.95
    assert retrieval_metrics(*given) == pytest.approx(expected)


@pytest.mark.parametrize("chunk", [1, 7, 60, None])
@pytest.mark.parametrize("levels", [None, 4])
@pytest.mark.parametrize("seed", range(4))
def test_equals_sorting_with_ties_and_in_any_chunks(seed, levels, chunk):
    given = many_to_many(levels=levels, seed=seed)
    assert retrieval_metrics(*given, chunk=chunk) == pytest.approx(expected_metrics(*given))


@pytest.mark.parametrize("k", [1, 5, 10])
def test_chance_is_what_all_orders_of_the_candidates_give(k):
    """Against every set of places that the right ones may take, for queries with 1, 2 and 6 right ones of 7."""
    right, among = torch.tensor([1, 2, 6]), 7
    shares = [np.mean([min(places) < k for places in itertools.combinations(range(among), count)]) for count in right.tolist()]
    assert chance_of_recall(f"image_to_text_R@{k}", right, among) == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("dimensions", [1, 7, 64, 129])
def test_a_constant_embedding_ranks_last(dimensions):
    row = torch.randn(1, dimensions, generator=torch.Generator().manual_seed(dimensions)).expand(203, -1)
    metrics = retrieval_metrics(row, row, torch.arange(203), torch.arange(203))
    assert metrics["image_to_text_R@10"] == metrics["text_to_image_R@10"] == 0
    assert (ranks(row, row, torch.arange(203), torch.arange(203)) == 203).all()


def test_an_embedding_that_is_not_a_number_never_ranks_well():
    z = torch.eye(30)
    broken = z.clone()
    broken[3] = torch.nan
    places = ranks(broken, z, torch.arange(30), torch.arange(30))
    assert places[3] >= 30 and (places[[i for i in range(30) if i != 3]] == 1).all()
    assert ranks(z, broken, torch.arange(30), torch.arange(30))[3] >= 30
    metrics = retrieval_metrics(torch.full((30, 4), torch.nan), torch.randn(30, 4), torch.arange(30), torch.arange(30))
    assert metrics["image_to_text_R@10"] == metrics["text_to_image_R@10"] == 0


@pytest.mark.parametrize(
    ("images", "texts"),
    [([0, 0], [0, 1]), ([0, 1], [1, 1]), ([0, 2], [0, 1]), ([-1, 1], [0, 1]), ([0, 1], [0, 2]), ([0], [0, 1]), ([], [])],
)
def test_refuses_wrong_pairs(images, texts):
    with pytest.raises(ValueError, match="in no right pair|pairs"):
        retrieval_metrics(torch.eye(2), torch.eye(2), torch.tensor(images).long(), torch.tensor(texts).long())


CAPTIONS = [["a", "b"], ["c"], ["a"], ["d", "d"], ["c", "e"]]


def as_set(pairs, captions):
    candidates, images, texts = pairs
    assert len(set(candidates)) == len(candidates) and set(candidates) == {text for row in captions for text in row}
    assert len(images) == len(set(zip(images.tolist(), texts.tolist(), strict=True)))  # no pair twice
    return {(image, candidates[text]) for image, text in zip(images.tolist(), texts.tolist(), strict=True)}


def test_images_of_one_unit_share_all_their_captions():
    units = np.array([2**64 - 1, 7, 8, 2**64 - 1, 9], np.uint64)
    expected = {
        (image, text)
        for image, unit in enumerate(units)
        for other, row in enumerate(CAPTIONS)
        for text in row
        if units[other] == unit
    }
    pairs = as_set(right_pairs(CAPTIONS, units), CAPTIONS)
    assert pairs == expected and {(0, "d"), (3, "a")} <= pairs and (1, "e") not in pairs


LARGE = """
import json, resource, numpy as np, torch
from dpfed.evaluation.retrieval import ranks, retrieval_metrics
n = 100_000
g = torch.Generator().manual_seed(0)
image_z = torch.randn(n, 16, generator=g)
text_z = image_z + torch.randn(n, 16, generator=g)
images, texts = torch.randperm(n, generator=g), torch.arange(n)
text_z = text_z[images]  # text t belongs to image images[t]
metrics = retrieval_metrics(image_z, text_z, images, texts)
found = ranks(image_z, text_z, images, texts)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
a, b = (z.double() / z.double().norm(dim=1, keepdim=True) for z in (image_z, text_z))
asked = [0, 1, 12_345, 50_000, n - 1]
direct = []
for i in asked:
    right = int((images == i).nonzero())
    similarity = b @ a[i]
    direct.append(int((similarity >= similarity[right] - 1e-6).sum()))
print(json.dumps({"peak": peak, "ranks": found[asked].tolist(), "direct": direct,
                  "mean": (found <= 10).double().mean().item(), "metric": metrics["image_to_text_R@10"]}))
"""


@pytest.mark.slow
def test_a_hundred_thousand_squared_fit_into_memory():
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)
    assert results["peak"] < 3  # GiB; the matrix of similarities alone would take 37
    assert results["metric"] == pytest.approx(results["mean"])
    assert max(results["direct"]) > 10
    for rank, direct in zip(results["ranks"], results["direct"], strict=True):
        assert abs(rank - direct) <= 1  # a candidate within float32's rounding of the bound may fall on either side
