"""Norms and sums of groups' gradients against torch in float64, by Triton's interpreter: no GPU is needed."""

import pytest
import torch

pytest.importorskip("triton")
from dpfed.bounding.kernels import squares, weighted_sum  # noqa: E402


@pytest.mark.parametrize("length", [1, 1000, 20_000])
def test_norms_and_sums_are_those_of_float64(length):
    gradients, factors = torch.randn(16, length) * torch.logspace(-12, 12, 16)[:, None], torch.logspace(12, -12, 16)
    gradients[3], factors[3] = torch.nan, 0.0  # a group that counts for nothing
    torch.testing.assert_close(squares(gradients), gradients.double().square().sum(1), rtol=1e-14, atol=0, equal_nan=True)
    expected = factors.double() @ gradients.nan_to_num().double()
    # Each term is rounded when it is multiplied, and a block's sum eight times, and that of the blocks twice.
    room = 11 * 2**-24 * (factors[:, None] * gradients.nan_to_num()).abs().double().sum(0)
    assert ((weighted_sum(gradients, factors, 8).double() - expected).abs() <= room).all()


@pytest.mark.long
def test_whole_numbers_are_each_term_truncated():
    generator = torch.Generator().manual_seed(2)
    gradients, factors = torch.randn(16, 20_000, generator=generator), 1e5 * torch.rand(16, generator=generator)
    gradients[3], factors[3] = torch.nan, 0.0
    expected = (factors[:, None] * gradients.nan_to_num()).trunc().double().sum(0)
    total = weighted_sum(gradients, factors, 8, torch.int32)
    assert total.dtype == torch.int32 and torch.equal(total.double(), expected)
    order = torch.randperm(16, generator=generator)
    assert torch.equal(total, weighted_sum(gradients[order], factors[order], 8, torch.int32))


@pytest.mark.long
def test_a_groups_norm_has_the_same_bits_wherever_it_stands():
    gradients = torch.randn(16, 20_000)
    order = torch.randperm(16)
    assert torch.equal(squares(gradients[order]), squares(gradients)[order])
    assert torch.equal(squares(gradients[:5].contiguous()), squares(gradients)[:5])


def test_groups_make_whole_blocks():
    with pytest.raises(ValueError, match="expected a multiple of 8 groups, got 12"):
        weighted_sum(torch.ones(12, 3), torch.ones(12), 8)
