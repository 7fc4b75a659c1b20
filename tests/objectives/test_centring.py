"""Centring: what it takes away, what follows what, and that telling private from public records apart becomes worthless."""

import pytest
import torch
from torch.nn.functional import normalize

from dpfed.config import ObjectiveConfig
from dpfed.objectives.centring import centred

S, D, OWN, PUBLIC = 6, 5, 2, 3  # and one of padding
KINDS = {"images": {"image": 2}, "pairs": {"image": 1, "text": 2}}


@pytest.fixture(params=list(KINDS))
def group(request):
    generator = torch.Generator().manual_seed(4)
    embeddings = {name: torch.randn(S, views, D, generator=generator) for name, views in KINDS[request.param].items()}
    centres = torch.randn(2 * len(embeddings) * D, generator=generator)
    row = torch.arange(S)
    return embeddings, centres, row < OWN, row < OWN + PUBLIC


def parts(centres, modalities):
    """The definition: the centre of each kind and modality."""
    return centres.view(2, modalities, D)


@pytest.mark.parametrize("unit_length", [True, False])
def test_every_embedding_loses_the_centre_of_its_kind(group, unit_length):
    embeddings, centres, private, present = group
    results, _ = centred(embeddings, centres.expand(S, -1), private, present, unit_length)
    for number, (name, z) in enumerate(embeddings.items()):
        for row in range(S):
            expected = z[row] - parts(centres, len(embeddings))[0 if private[row] else 1, number]
            assert torch.allclose(results[name][row], normalize(expected, dim=-1) if unit_length else expected, atol=1e-6)


def test_centres_follow_the_mean_and_nothing_else_reaches_them(group):
    embeddings, centres, private, present = group
    embeddings = {name: z.clone().requires_grad_() for name, z in embeddings.items()}
    centres = centres.requires_grad_()
    results, distance = centred(embeddings, centres.expand(S, -1), private, present, True)
    assert not any(torch.autograd.grad(distance, list(embeddings.values()), retain_graph=True, allow_unused=True)[0:1])
    (slope,) = torch.autograd.grad(distance, centres, retain_graph=True)
    slope = slope.view(2, len(embeddings), D)
    for number, z in enumerate(embeddings.values()):
        for kind, rows in enumerate((private, present & ~private)):
            mean = z.detach()[rows].mean(dim=(0, 1))
            expected = OWN * (parts(centres.detach(), len(embeddings))[kind, number] - mean)
            assert torch.allclose(slope[kind, number], expected, atol=1e-5)
    contrast = sum(z.square().sum() * index for index, z in enumerate(results.values(), start=1))
    assert torch.autograd.grad(contrast, centres, allow_unused=True) == (None,)


@pytest.mark.parametrize("name", ["infonce", "siglip", "barlow_twins"])
def test_a_shift_that_the_centres_know_changes_nothing(name):
    """The shortcut that centring closes: without it, such a shift makes every public record an easy negative."""
    generator = torch.Generator().manual_seed(0)
    z = {kind: torch.randn(1 + PUBLIC, 1, D, generator=generator) for kind in ("image", "text")}
    shift = torch.randn(D, generator=generator) * 20
    present, private = torch.ones(1 + PUBLIC, dtype=torch.bool), torch.arange(1 + PUBLIC) < 1
    loss, arguments = ObjectiveConfig(name=name).group_loss(PUBLIC, 0.0), (present, torch.tensor(0.1), torch.tensor(-1.0))
    moved = {kind: torch.where(private[:, None, None], value + shift, value) for kind, value in z.items()}

    def centres(own_centre):
        return {"centres": torch.cat([own_centre, own_centre, torch.zeros(2 * D)]).expand(1 + PUBLIC, 1, -1)}

    plain = loss({**z, **centres(torch.zeros(D))}, *arguments)
    assert torch.allclose(loss({**moved, **centres(shift)}, *arguments), plain, rtol=1e-3, atol=1e-4)
    if name == "infonce":
        assert loss({**moved, **centres(torch.zeros(D))}, *arguments) < 0.1 * plain
