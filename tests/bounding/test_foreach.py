"""Many tensors in one call give what one call each gives; torch promises none of it."""

import torch

from dpfed.bounding import foreach

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
