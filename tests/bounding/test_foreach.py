"""Many tensors in one call give what one call each gives; torch promises none of it."""

import torch

from dpfed.bounding import foreach
from dpfed.bounding.layer_rules.term import add_weighted

TENSORS = [torch.arange(12.0).view(3, 4) / 7, torch.linspace(-1, 1, 5), torch.tensor(2.0), torch.full((2,), 1e30)]


def test_norms_are_added_up_in_the_type_that_is_asked_for():
    norms = foreach.norms(TENSORS, torch.float64)
    assert norms.dtype == torch.float64
    assert torch.equal(norms, torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in TENSORS]))
    assert norms[-1] > 1e30  # its square has no float32


def test_terms_are_added_in_place_and_to_sums_in_another_type():
    sums = [torch.ones_like(one, dtype=torch.float64) for one in TENSORS]
    foreach.add_(sums, TENSORS, 0.5)
    foreach.add_(sums, TENSORS)
    for total, term in zip(sums, TENSORS, strict=True):
        torch.testing.assert_close(total, 1 + 1.5 * term.double(), rtol=1e-6, atol=1e-6)


def test_a_long_term_of_another_type_has_the_bits_of_one_call():
    generator = torch.Generator().manual_seed(3)
    term, total = (torch.randn(3, 70_001, generator=generator) for _ in range(2))
    result, expected = total.double(), total.double()
    foreach.add_([result], [term.t().contiguous().t()], 0.3)
    expected.add_(term, alpha=0.3)
    assert torch.equal(result, expected)


def test_each_term_of_a_whole_sum_is_truncated_whatever_its_length():
    generator = torch.Generator().manual_seed(5)
    shapes = ((), (3,), (5, 7), (foreach._SHORT,), (foreach._SHORT + 1,), (300, 1_000))
    terms = [1e4 * torch.randn(shape, generator=generator) for shape in shapes]
    sums = [torch.full(shape, 7) for shape in shapes]
    foreach.add_(sums, terms, 0.37)
    for total, term in zip(sums, terms, strict=True):
        assert torch.equal(total, 7 + (term * 0.37).trunc().long())


def test_groups_that_are_added_at_once_have_the_bits_of_one_after_the_other():
    """A group whose factor is 0 is left out, although its gradient is not finite."""
    generator = torch.Generator().manual_seed(6)
    for length in (11, foreach._SHORT, foreach._SHORT + 1):
        gradients = [1e4 * torch.randn(length, 1, generator=generator) for _ in range(4)]
        gradients[1][0] = torch.inf
        factors = torch.tensor([0.1, 0.0, 0.7, 1.0])
        total = torch.full((1, length), 3, dtype=torch.int32)
        add_weighted([gradient.view(1, length) for gradient in gradients], factors, total)
        kept = sum((gradients[k] * factors[k]).trunc().int() for k in (0, 2, 3))
        assert torch.equal(total, 3 + kept.view(1, length))
