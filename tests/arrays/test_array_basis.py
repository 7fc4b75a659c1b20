"""A fit with a public basis: made of public rows alone, kept with the heads, refused where rows are private too."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.base import clone

import dpfed
from dpfed.arrays import basis as room
from dpfed.arrays.basis import basis_of
from dpfed.arrays.fitting import Fit, Wanted
from dpfed.arrays.records import ArrayRecords
from dpfed.arrays.rows import rows_of
from dpfed.errors import UserError
from dpfed.models.basis import Basis, principal_basis
from dpfed.privacy.randomness import Randomness
from tests.arrays.two_views import two_views

N = 400
X, Y = two_views(N, (24, 16))
PUBLIC = two_views(300, (24, 16), seed=8)
WANTED = Wanted(epsilon=4.0, delta=1e-4)


def made(x=X, y=Y, public=PUBLIC):
    return basis_of(public, rows_of(x, "X"), rows_of(y, "Y"), False, None)


def test_it_is_a_function_of_public_rows_alone(monkeypatch):
    """Private rows are opened for their shape, and cannot be read while the basis is made."""
    other = two_views(90, (24, 16), seed=4)
    x, y = (rows_of(side, "XY"[number]) for number, side in enumerate(other))
    monkeypatch.setattr(type(x), "block", _only_public(type(x).block))
    result = basis_of(PUBLIC, x, y, False, None)
    for side, public in zip(("image", "text"), PUBLIC, strict=True):
        expected, basis = principal_basis(torch.from_numpy(public), 256), result.bases[side]
        assert torch.equal(basis.rows, expected.rows) and torch.equal(basis.centre, expected.centre)
    with pytest.raises(AssertionError, match="private"):
        x.block(np.arange(3))


def _only_public(block):
    def read(self, rows):
        assert self.name.startswith("basis"), "a private row was read"
        return block(self, rows)

    return read


def test_rows_are_mapped_before_they_are_added_up():
    """An oracle in floating point: the sum of step 0 is that of the unit vectors P (x/|x| - c)."""
    fit = Fit(WANTED, ArrayRecords(rows_of(X, "X"), rows_of(Y, "Y"), None, "."), made())
    layout = fit.heads.layout
    assert layout.dimensions == 24 and layout.cross_share == 0.9
    totals = fit.worker(Randomness.from_seed(0)).bounded_sum(0).numbers()[:48].view(2, 24).numpy() / layout.scales[0]
    for side, rows, total in zip(("image", "text"), (X, Y), totals, strict=True):
        basis = fit.basis.bases[side]
        double = Basis(basis.rows.double(), basis.centre.double()).project(torch.from_numpy(rows).double()).sum(0)
        np.testing.assert_allclose(total[: len(double)], double.numpy(), atol=1e-2)
        assert not total[len(double) :].any()  # rows of zeros follow a basis with fewer rows


def test_a_row_moves_each_sum_by_its_share_at_most():
    """Also a row at the centre, where a length near 0 is divided by, and one far away."""
    basis = made()
    centre = basis.bases["image"].centre.numpy()
    for row in (centre, centre * (1 + 1e-7), 1e30 * X[0], -centre, X[1]):
        x, y = np.vstack([X, row]).astype(np.float64), np.vstack([Y, Y[:1]])
        one, two = (
            Fit(WANTED, ArrayRecords(rows_of(x[:end], "X"), rows_of(y[:end], "Y"), None, "."), basis) for end in (N, N + 1)
        )
        two.plan, two.heads, two.model = one.plan, one.heads, one.model  # with equal public numbers
        for step, share in enumerate(one.heads.layout.shares):
            sums = [fit.worker(Randomness.from_seed(0)).bounded_sum(step).numbers() for fit in (one, two)]
            moved = (sums[0] - sums[1]).norm().item()
            assert moved <= share**0.5 and (moved > 0.5 * share**0.5 or step == 0)


def test_the_papers_name_it_and_saved_heads_have_it(tmp_path):
    cca = dpfed.PrivateCCA(epsilon=3, basis=PUBLIC, folder=tmp_path / "fits").fit(X, Y)
    assert cca.basis_fingerprint_ == made().fingerprint
    assert f"basis = public rows, basis_fingerprint = {cca.basis_fingerprint_}" in cca.card_
    assert "The public records of the basis" in cca.card_
    facts = json.loads((tmp_path / "fits" / "fit-1" / "cca.json").read_text())
    assert facts["basis"] == cca.basis_fingerprint_ and "basis" not in facts["parameters"]
    again = dpfed.PrivateCCA.load(tmp_path / "fits")
    assert again.basis_fingerprint_ == cca.basis_fingerprint_ and again.basis is None
    for one, two in zip(again.transform(X, Y), cca.transform(X, Y), strict=True):
        assert np.array_equal(one, two)
    few = again.with_components(3)
    assert np.array_equal(few.transform(X), cca.with_components(3).transform(X)) and few.transform(X).shape == (N, 3)
    again.save(tmp_path / "saved")
    assert dpfed.PrivateCCA.load(tmp_path / "saved").basis_fingerprint_ == cca.basis_fingerprint_
    assert all(np.array_equal(*pair) for pair in zip(clone(cca).basis, PUBLIC, strict=True))


def test_the_heads_with_an_origin_are_enough_in_three_lines():
    cca = dpfed.PrivateCCA(epsilon=3, basis=PUBLIC).fit(X, Y)
    heads = {name: torch.from_numpy(value) for name, value in cca.heads_.items()}
    for given, side, embedded in zip((X, Y), ("image", "text"), cca.transform(X, Y), strict=True):
        apart = F.normalize(torch.from_numpy(given), dim=-1) - heads[f"{side}.origin"]
        unit = F.normalize(apart @ heads[f"{side}.projection"].T, dim=-1)
        embedding = F.normalize((unit - heads[f"{side}.centre"]) @ heads[f"{side}.matrix"], dim=-1)
        torch.testing.assert_close(embedding, torch.from_numpy(embedded), atol=1e-5, rtol=1e-4)


def test_random_is_what_no_basis_is():
    with pytest.warns(UserWarning, match="predictable"):
        one, two = (dpfed.PrivateCCA(epsilon=3, basis=basis, random_state=1).fit(X, Y) for basis in (None, "random"))
    assert one.basis_fingerprint_ is two.basis_fingerprint_ is None and one.card_.count("basis") == 0
    assert one.heads_.keys() == two.heads_.keys() and all(
        np.array_equal(one.heads_[name], two.heads_[name]) for name in one.heads_
    )


def test_few_rows_in_many_columns_gain():
    """Public rows show the few directions in which both matrices vary most; a random basis needs many more dimensions."""
    x, y = two_views(1600, (300, 200))
    public = two_views(2000, (300, 200), seed=8)
    scores = [
        dpfed.PrivateCCA(epsilon=1, basis=basis).fit(x[:600], y[:600]).score(x[600:], y[600:]) for basis in (None, public)
    ]
    assert scores[1] > 1.1 * scores[0]  # measured: 0.98 and 0.77


def changed(rows, value):
    rows = rows.copy()
    rows[3, 1] = value
    return rows


REFUSED = [
    (lambda: PUBLIC[0], "[arrays-basis]"),
    (lambda: "generated", "[arrays-basis]"),
    (lambda: 7, "[arrays-basis]"),
    (lambda: (*PUBLIC, PUBLIC[0]), "[arrays-basis]"),
    (lambda: PUBLIC[::-1], "[arrays-basis-columns]"),
    (lambda: (PUBLIC[0][:, :9], PUBLIC[1]), "[arrays-basis-columns]"),
    (lambda: (PUBLIC[0], None), "[arrays-none]"),
    (lambda: (PUBLIC[0][0], PUBLIC[1]), "[arrays-shape]"),
    (lambda: (PUBLIC[0][:, None].repeat(2, 1), PUBLIC[1]), "[arrays-basis-shape]"),
    (lambda: (PUBLIC[0][:99], PUBLIC[1]), "[arrays-basis-few]"),
    (lambda: (PUBLIC[0][:0], PUBLIC[1]), "[arrays-basis-few]"),
    (lambda: (PUBLIC[0] * 0, PUBLIC[1]), "[arrays-basis-few]"),
    (lambda: (changed(PUBLIC[0], np.nan), PUBLIC[1]), "[arrays-basis-nan]"),
    (lambda: (PUBLIC[0], changed(PUBLIC[1], -np.inf)), "[arrays-basis-nan]"),
    (lambda: (np.vstack([PUBLIC[0], X[7:8]]), PUBLIC[1]), "[arrays-basis-shared]"),
    (lambda: (np.vstack([PUBLIC[0], X[7:8]]).astype("f8"), PUBLIC[1]), "[arrays-basis-shared]"),
    (lambda: (X, Y), "[arrays-basis-shared]"),
    (lambda: (PUBLIC[0], Y), "[arrays-basis-shared]"),
    (lambda: ("gone.npy", PUBLIC[1]), "[arrays-file]"),
]


@pytest.mark.parametrize(("given", "code"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_a_basis_is_refused_and_costs_nothing(given, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        dpfed.PrivateCCA(epsilon=3, folder="fits", basis=given()).fit(X, Y)
    assert str(refused.value).endswith(code) and not list(tmp_path.glob("fits/*"))


def test_other_refusals_know_the_basis():
    views = np.stack([X, X + 0.1], 1)
    for parameters, rows, code in (
        ({}, (views,), "arrays-basis-aligned"),
        ({"aligned": True}, (X, X + 1), "arrays-basis-aligned"),
        ({"dimensions": 25}, (X, Y), "25 is too much for 24 directions of the basis"),
    ):
        with pytest.raises(UserError, match=code):
            dpfed.PrivateCCA(epsilon=3, basis=PUBLIC, **parameters).fit(*rows)


def test_captions_of_classes_may_be_in_both():
    """As in the check of stores, which looks at images."""
    labels = np.eye(16, dtype="f4")
    cca = dpfed.PrivateCCA(epsilon=3, basis=(PUBLIC[0], labels[np.arange(300) % 16])).fit(X, labels[np.arange(N) % 16])
    assert np.isfinite(cca.score(X, labels[np.arange(N) % 16]))


def test_a_large_public_matrix_is_thinned_out(monkeypatch):
    monkeypatch.setattr(room, "MOST_PUBLIC", 150)
    result, expected = made(public=(PUBLIC[0], PUBLIC[1])), np.linspace(0, 299, 150).round().astype(int)
    assert torch.equal(result.bases["image"].rows, principal_basis(torch.from_numpy(PUBLIC[0][expected]), 256).rows)
