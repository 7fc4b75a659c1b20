"""What may be given as X, Y and groups: equal numbers give equal bits; all else is refused in one sentence."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch

import dpfed
from dpfed.arrays.fitting import Fit, Wanted, plan_of
from dpfed.arrays.records import ArrayRecords
from dpfed.arrays.rows import rows_of
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness
from tests.arrays.two_views import two_views

N = 120
X, Y = (np.round(side * 8) for side in two_views(N, (20, 15)))  # whole numbers: every type holds them
WANTED = Wanted(epsilon=4.0, delta=1e-4)


def fit_of(x, y, groups=None):
    return Fit(WANTED, ArrayRecords(rows_of(x, "X"), rows_of(y, "Y"), groups, "."))


def first_sum(x, y, groups=None):
    return fit_of(x, y, groups).worker(Randomness.from_seed(0)).bounded_sum(0).values


def mapped(array, folder):
    np.save(folder / "x.npy", array)
    return np.load(folder / "x.npy", mmap_mode="r")


def in_parquet(array, folder, names=None):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(array.astype("f4").reshape(-1)), array.shape[1])
    columns = {"features": vectors} if names is None else {"name": pa.array(names), "features": vectors}
    path = folder / f"{'x' if names is None else names[0]}.parquet"
    pq.write_table(pa.table(columns), path)
    return path


FORMS = {
    "float64": lambda x, folder: x.astype("f8"),
    "float16": lambda x, folder: x.astype("f2"),
    "int64": lambda x, folder: x.astype("i8"),
    "int8": lambda x, folder: x.astype("i1"),
    "big-endian": lambda x, folder: x.astype(">f4"),
    "fortran": lambda x, folder: np.asfortranarray(x),
    "every other row": lambda x, folder: np.repeat(x, 2, 0)[::2],
    "read-only": lambda x, folder: np.frombuffer(x.tobytes(), "f4").reshape(x.shape),
    "a list": lambda x, folder: x.tolist(),
    "objects": lambda x, folder: x.astype(object),
    "a matrix": lambda x, folder: np.asmatrix(x),
    "torch": lambda x, folder: torch.from_numpy(x).requires_grad_(),
    "bfloat16": lambda x, folder: torch.from_numpy(x).bfloat16(),
    "int of torch": lambda x, folder: torch.from_numpy(x).int(),
    "csr": lambda x, folder: scipy.sparse.csr_matrix(x),
    "coo": lambda x, folder: scipy.sparse.coo_array(x),
    "a frame": lambda x, folder: pd.DataFrame(x),
    "a frame of sparse columns": lambda x, folder: pd.DataFrame(x).astype(pd.SparseDtype("float32", 0.0)).astype({0: "f8"}),
    "a frame of many types": lambda x, folder: pd.DataFrame(x).astype({0: "int64", 1: "float64", 2: "Int16"}),
    "mapped": mapped,
    "a path": lambda x, folder: str((np.save(folder / "path.npy", x), folder / "path.npy")[1]),
    "Parquet": in_parquet,
}


@pytest.mark.parametrize("form", FORMS)
def test_equal_numbers_give_equal_bits(form, tmp_path):
    assert torch.equal(first_sum(FORMS[form](X, tmp_path), Y), first_sum(X, Y))
    cca = dpfed.PrivateCCA(epsilon=3).fit(X, Y)
    np.testing.assert_allclose(cca.transform(FORMS[form](X, tmp_path)), cca.transform(X), atol=1e-6)


@pytest.mark.parametrize("wrong", ["nan", "inf", "zero"])
def test_a_row_that_says_nothing_counts_as_nothing(wrong):
    x = X.copy()
    x[7], x[9, 3] = {"nan": (np.nan, np.nan), "inf": (np.inf, -np.inf), "zero": (0, X[9, 3])}[wrong]
    y = Y.copy()
    kept = np.ones(N, bool)
    kept[[7] if wrong == "zero" else [7, 9]] = False
    whole, rest = fit_of(x, y), fit_of(x[kept], y[kept])
    rest.plan, rest.heads, rest.model = whole.plan, whole.heads, whole.model  # of as many records
    sums = [fit.worker(Randomness.from_seed(0)).bounded_sum(0).values for fit in (whole, rest)]
    k = whole.heads.layout.dimensions
    assert torch.equal(sums[0][:k], sums[1][:k]) and not torch.equal(sums[0][k:], sums[1][k:])
    cca = dpfed.PrivateCCA(epsilon=3).fit(x, y)
    z, w = cca.transform(x, y)
    assert np.isfinite(z).all() and not z[~kept].any() and np.allclose(np.linalg.norm(z[kept], axis=1), 1, atol=1e-5)
    assert np.isfinite(cca.score(x, y)) and np.allclose(np.linalg.norm(w, axis=1), 1, atol=1e-5)


@pytest.mark.long
def test_constant_columns_and_few_rows():
    x, y = X.copy(), Y.copy()
    x[:, :5], y[:, 3] = 7, 0
    assert np.isfinite(dpfed.PrivateCCA(epsilon=3).fit(x, y).transform(x)).all()
    few = dpfed.PrivateCCA(epsilon=3).fit(x[:6], y[:6])
    assert few.transform(x).shape == (N, 6) and "linear heads of 6 dimensions" in few.card_


GROUPS = {
    "numbers": np.arange(N) // 4,
    "floats": np.arange(N) // 4 * 0.5,
    "texts": [f"person {number // 4}" for number in range(N)],
    "objects": np.array([number // 4 or "nobody" for number in range(N)], dtype=object),
    "pandas": pd.Series([f"person {number // 4}" for number in range(N)], index=range(9, 9 + N)),
    "categories": pd.Series([str(number // 4) for number in range(N)]).astype("category"),
    "torch": torch.arange(N) // 4,
    "arrow": pa.chunked_array([pa.array(np.arange(N, dtype=np.uint64) // 4)]),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_rows_of_a_group_are_averaged(kind):
    fit = fit_of(X, Y, GROUPS[kind])
    assert (fit.plan.sampling.records, fit.plan.promise.unit) == (N // 4, "user")
    expected = np.zeros(20)
    for number in range(N // 4):
        rows = X[4 * number : 4 * number + 4].astype("f8")
        expected += (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(0)
    layout = fit.heads.layout
    sums = fit.worker(Randomness.from_seed(0)).bounded_sum(0).numbers()[: layout.dimensions]
    projected = fit.heads.basis("image").rows.double().numpy() @ expected if layout.dimensions < 20 else expected
    np.testing.assert_allclose(sums.numpy() / layout.scales[0], projected, atol=1e-2)


def test_rows_that_name_no_group_are_groups_of_their_own():
    for missing in (None, float("nan"), pd.NaT):
        groups = np.array(["a"] * 10 + [missing] * (N - 10), dtype=object)
        assert fit_of(X, Y, groups).plan.sampling.records == 1 + N - 10
    for kind in ("datetime64[s]", "datetime64[ns]", "timedelta64[s]", "timedelta64[ns]"):
        groups = np.array([7] * 10 + [0] * (N - 10)).astype(kind)
        groups[10:] = "NaT"
        assert fit_of(X, Y, groups).plan.sampling.records == 1 + N - 10
    for blank in ("", "  "):
        assert fit_of(X, Y, np.array(["a", "a "] * 5 + [blank] * (N - 10))).plan.sampling.records == 1 + N - 10
    card = dpfed.PrivateCCA(epsilon=3).fit(X, Y, groups=GROUPS["texts"]).card_
    assert (
        "one group: all rows of X and Y that share a value of `groups`" in card and "| Training units N (public) | 30 |" in card
    )
    assert "120" not in card  # how many rows there are is not public then


REFUSED = [
    (lambda: (X, Y[:-1]), "[arrays-lengths]"),
    (lambda: (X[:, :1], Y), "[arrays-one-column]"),
    (lambda: (X[:, 0], Y), "[arrays-shape]"),
    (lambda: (X, np.arange(N)), "[arrays-shape]"),
    (lambda: (X[:0], Y[:0]), "[arrays-few]"),
    (lambda: (X[:1], Y[:1]), "[arrays-few]"),
    (lambda: (X[:, :0], Y), "[arrays-one-column]"),
    (lambda: (X * np.nan, Y), "[arrays-nothing]"),
    (lambda: (X, Y * 0), "[arrays-nothing]"),
    (lambda: (X.astype(complex), Y), "[arrays-complex]"),
    (lambda: (X, [["a", "b"]] * N), "[arrays-not-numbers]"),
    (lambda: (X, [[1, 2], [3]] * (N // 2)), "[arrays-not-numbers]"),
    (lambda: (X, X.astype("datetime64[s]")), "[arrays-type]"),
    (lambda: (X, None), "[arrays-one-matrix]"),
    (lambda: (None, Y), "[arrays-none]"),
    (lambda: (X[:, None].repeat(2, 1), Y), "[arrays-views-beside]"),
    (lambda: (X[:, None], None), "[arrays-views]"),
    (lambda: (X[None, None], Y), "[arrays-shape]"),
    (lambda: (pd.DataFrame({"a": [[1.0, 2.0]] * N, "b": 1.0}), Y), "[arrays-column]"),
    (lambda: (torch.from_numpy(X).to_sparse(), Y), "[arrays-tensor]"),
    (lambda: ("gone.npy", Y), "[arrays-file]"),
    (lambda: ("gone.txt", Y), "[arrays-file-kind]"),
    (lambda: (Path("empty.npy").write_bytes(b"") or "empty.npy", Y), "[arrays-file]"),
    (lambda: ("~no-user-of-this-name/x.npy", Y), "[arrays-home]"),
    (lambda: (scipy.sparse.csr_matrix((N, 70_000)), Y), "[arrays-wide]"),
]


@pytest.mark.parametrize(("given", "code"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_matrix_is_refused_in_a_sentence(given, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        dpfed.PrivateCCA(epsilon=3, folder="fits").fit(*given())
    assert str(refused.value).endswith(code) and isinstance(refused.value, ValueError)
    assert not list(tmp_path.glob("fits/*"))


PARAMETERS = [
    ({"epsilon": None}, "[arrays-epsilon]"),
    ({"epsilon": 0}, "[plan-impossible]"),
    ({"delta": 0.5}, "[plan-impossible]"),
    ({"dimensions": 21}, "[arrays-dimensions]"),
    ({"n_components": 0}, "[arrays-parts]"),
    ({"n_components": 21}, "[arrays-parts]"),
    ({"n_components": True}, "[arrays-parts]"),
    ({"aligned": "no"}, "[arrays-aligned-odd]"),
    ({"epsilon": 10**400}, "[plan-impossible]"),
    ({"aligned": True}, "[arrays-aligned]"),
    ({"random_state": "one"}, "[arrays-seed]"),
    ({"budget": 4}, "[arrays-budget-folder]"),
    ({"noise": "laplace"}, "[plan-impossible]"),
    ({"device": "gpu"}, "[arrays-device]"),
    ({"epsilon": 300}, "[arrays-epsilon-large]"),
    ({"dimensions": 2.5}, "[arrays-dimensions-odd]"),
]


@pytest.mark.parametrize(("changes", "code"), PARAMETERS, ids=[code + next(iter(given)) for given, code in PARAMETERS])
def test_parameters_that_cannot_be_are_refused(changes, code):
    with pytest.raises(UserError) as refused:
        dpfed.PrivateCCA(**{"epsilon": 3.0, **changes}).fit(X, Y)
    assert str(refused.value).endswith(code)


@pytest.mark.long
def test_an_epsilon_that_is_too_large_is_told_one_that_is_not():
    for rows in (2, 20, N):
        records = ArrayRecords(rows_of(X[:rows], "X"), rows_of(Y[:rows], "Y"), None, ".")
        with pytest.raises(UserError, match="Lower it to .* or less") as refused:
            plan_of(Wanted(300.0), records)
        assert plan_of(Wanted(float(re.search(r"Lower it to (\d+)", str(refused.value))[1])), records).noise.multiplier < 0.11


def test_messages_call_the_device_as_the_class_does(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="^device = 'cuda', but .*arrays-device-missing"):
        dpfed.PrivateCCA(epsilon=3, device="cuda").fit(X, Y)


def test_groups_that_are_no_list_of_values_are_refused():
    with pytest.raises(UserError, match="arrays-groups-odd"):
        fit_of(X, Y, [[1], [1, 2]])


def test_other_columns_than_those_that_were_fitted():
    cca = dpfed.PrivateCCA(epsilon=3).fit(pd.DataFrame(X, columns=[f"c{n}" for n in range(20)]), Y)
    assert cca.feature_names_in_[0] == "c0"
    for given, code in (
        ((X[:, :9],), "[arrays-other-columns]"),
        ((X, X), "[arrays-other-columns]"),
        ((pd.DataFrame(X, columns=[f"c{19 - n}" for n in range(20)]),), "[arrays-columns]"),
    ):
        with pytest.raises(ValueError) as refused:
            cca.transform(*given)
        assert str(refused.value).endswith(code)
    for given, code in (
        ((X[:5], Y[:5]), "[arrays-score-few]"),
        ((X[:50], Y), "[arrays-score-lengths]"),
        ((X,), "[arrays-score]"),
        ((None, Y), "[arrays-score-x]"),
        ((X[:, None].repeat(2, 1), Y), "[arrays-score-views]"),
    ):
        with pytest.raises(ValueError) as refused:
            cca.score(*given)
        assert str(refused.value).endswith(code)


def test_files_whose_names_differ_are_not_pairs(tmp_path):
    names = [f"picture {number}" for number in range(N)]
    one, two, three = (
        in_parquet(side, tmp_path, ids) for side, ids in ((X, names), (Y, ["a", *names[1:]]), (Y, ["b", *names[1:]]))
    )
    with pytest.raises(UserError, match="arrays-names"):
        dpfed.PrivateCCA(epsilon=3).fit(one, two)
    dpfed.PrivateCCA(epsilon=3).fit(two, in_parquet(Y, tmp_path))
    pq.write_table(pa.table({"vectors": [1, 2]}), tmp_path / "other.parquet")
    pq.write_table(pa.table({"features": [[1.0, 2.0], [1.0]]}), tmp_path / "ragged.parquet")
    pq.write_table(pa.table({"features": [[1.0, 2.0], None]}), tmp_path / "gap.parquet")
    refused = ("other", "arrays-file-column"), ("ragged", "arrays-file-lengths"), ("gap", "1 of 2 .*arrays-file-missing")
    for name, code in refused:
        with pytest.raises(UserError, match=code):
            dpfed.PrivateCCA(epsilon=3).fit(tmp_path / f"{name}.parquet", three)


@pytest.mark.long
def test_a_mapped_matrix_is_never_in_memory_as_a_whole(tmp_path):
    big = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float16, (60_000, 256))
    big[:] = np.random.default_rng(0).standard_normal((60_000, 256), np.float32)
    big.flush()
    cca = dpfed.PrivateCCA(epsilon=3, dimensions=16, n_components=2)
    tracemalloc.start()
    cca.fit(tmp_path / "big.npy", tmp_path / "big.npy")
    assert cca.transform(tmp_path / "big.npy").shape == (60_000, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < big.nbytes  # 30 MB; in float64 it would be 120
