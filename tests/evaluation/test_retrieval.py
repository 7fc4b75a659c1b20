"""Retrieval against sorted lists, with several captions for an image and with ties."""

import numpy as np
import pytest
import torch

from dpfed.evaluation.retrieval import retrieval_metrics


def naive_ranks(image_z, text_z, owner):
    """1-based ranks by sorting, where every wrong candidate that ties stands ahead of the right one."""
    unit = [z.double().numpy() / np.linalg.norm(z.double().numpy(), axis=1, keepdims=True) for z in (image_z, text_z)]
    similarity, owner = np.round(unit[0] @ unit[1].T, 9), owner.numpy()
    image_to_text = []
    for i, row in enumerate(similarity):
        order = sorted(range(len(row)), key=lambda t: (-row[t], owner[t] == i))
        wrong_before = 0
        for t in order:
            if owner[t] == i:
                break
            wrong_before += 1
        image_to_text.append(wrong_before + 1)
    text_to_image = []
    for t, column in enumerate(similarity.T):
        order = sorted(range(len(column)), key=lambda i: (-column[i], owner[t] == i))
        text_to_image.append(order.index(owner[t]) + 1)
    return {"image_to_text": np.array(image_to_text), "text_to_image": np.array(text_to_image)}


def summary(ranks):
    out = {}
    for direction, values in ranks.items():
        out |= {f"{direction}_R@{k}": (values <= k).mean() for k in (1, 5, 10)}
        out |= {f"{direction}_mean_rank": values.mean(), f"{direction}_median_rank": np.median(values)}
    return out


def pairs(n=80, most=4, noise=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, most + 1, (n,), generator=g)
    owner = torch.arange(n).repeat_interleave(counts)
    owner = owner[torch.randperm(len(owner), generator=g)]
    image_z = torch.randn(n, 8, generator=g)
    return image_z, image_z[owner] + noise * torch.randn(len(owner), 8, generator=g), owner


@pytest.mark.parametrize("most", [1, 5])
def test_equals_sorting(most):
    given = pairs(most=most)
    expected = summary(naive_ranks(*given))
    assert 0.1 < expected["image_to_text_R@1"] < 0.95
    assert retrieval_metrics(*given) == pytest.approx(expected)


def test_equals_sorting_with_ties():
    g = torch.Generator().manual_seed(2)
    image_z = torch.randint(-1, 2, (60, 3), generator=g).float() + torch.tensor([0.0, 0.0, 5.0])
    owner = torch.arange(60).repeat(2)
    text_z = image_z[owner] + torch.randint(0, 2, (120, 3), generator=g)
    assert retrieval_metrics(image_z, text_z, owner) == pytest.approx(summary(naive_ranks(image_z, text_z, owner)))


@pytest.mark.parametrize("chunk", [1, 13, 80, 10_000])
def test_chunks_do_not_matter(chunk):
    given = pairs(most=3)
    assert retrieval_metrics(*given, chunk=chunk) == retrieval_metrics(*given)


@pytest.mark.parametrize("dimensions", [1, 7, 64, 129])
def test_a_constant_embedding_ranks_last(dimensions):
    g = torch.Generator().manual_seed(dimensions)
    row = torch.randn(1, dimensions, generator=g)
    metrics = retrieval_metrics(row.expand(203, -1), row.expand(203, -1), torch.arange(203))
    assert metrics["image_to_text_R@10"] == metrics["text_to_image_R@10"] == 0
    assert metrics["image_to_text_median_rank"] == metrics["text_to_image_mean_rank"] == 203


def test_an_image_with_many_equal_captions_of_its_own_ranks_first():
    image_z = torch.eye(3)
    owner = torch.tensor([0, 0, 0, 1, 2])
    assert retrieval_metrics(image_z, image_z[owner], owner)["image_to_text_mean_rank"] == 1.0


@pytest.mark.parametrize("owner", [[0, 0], [0, 2], [-1, 1], [0]])
def test_refuses_wrong_indices(owner):
    with pytest.raises(ValueError, match="caption|text_to_image|indices"):
        retrieval_metrics(torch.eye(2), torch.eye(2), torch.tensor(owner))
