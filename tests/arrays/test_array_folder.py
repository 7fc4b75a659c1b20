"""Fits on disk: saved, loaded, behind dpfed's towers, and under a lifetime budget."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dpfed as library
from dpfed.errors import Notice, UserError
from dpfed.models.contrastive import TwoTowerModel
from dpfed.models.moments import PublishedHeads, give_heads
from dpfed.privacy.ledger import Ledger
from tests.arrays.two_views import two_views

X, Y = two_views(300, (24, 16))


@pytest.fixture(autouse=True)
def registry(tmp_path_factory, monkeypatch):
    """Budgets of other tests hold for other arrays only, but are looked through."""
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path_factory.mktemp("budgets")))


@pytest.fixture(scope="module")
def fitted():
    return library.PrivateCCA(epsilon=3).fit(X, Y)


def test_what_is_saved_is_loaded(tmp_path):
    cca = library.PrivateCCA(epsilon=3, n_components=5).fit(X, Y)
    cca.save(tmp_path / "saved")
    again = library.PrivateCCA.load(tmp_path / "saved")
    assert again.get_params() == cca.get_params() and again.epsilon_ == cca.epsilon_ and again.card_ == cca.card_
    assert (again.delta_, again.n_features_in_, again.n_features_y_) == (cca.delta_, 24, 16)
    for one, two in zip(again.transform(X, Y), cca.transform(X, Y), strict=True):
        assert np.array_equal(one, two)
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {
        "cca.json",
        "heads.safetensors",
        "ledger.jsonl",
        "privacy_card.md",
        "released.safetensors",
    }
    with pytest.raises(UserError, match="arrays-save-used"):
        cca.save(tmp_path / "saved")
    (tmp_path / "saved" / "heads.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match="arrays-file-differs"):
        library.PrivateCCA.load(tmp_path / "saved")
    with pytest.raises(UserError, match="arrays-unreadable"):
        library.PrivateCCA.load(tmp_path / "gone")


def test_every_fit_in_a_folder_has_its_own_and_they_add_up(tmp_path):
    cca = library.PrivateCCA(epsilon=2, delta=1e-5, folder=tmp_path / "fits")
    first = cca.fit(X, Y).card_
    assert "Other fits in this folder" not in first
    together = "1; if all used the same rows, all fits together are (4.00, 2.00e-5)-differentially private"
    assert f"| Other fits in this folder | {together} |" in cca.fit(X, Y).card_
    for number in (1, 2):
        ledger = Ledger.open(tmp_path / "fits" / f"fit-{number}" / "ledger.jsonl")
        assert ledger.charged == 2 and ledger.epsilon == cca.epsilon_
    assert (tmp_path / "fits" / "fit-1" / "privacy_card.md").read_text() == first
    last = library.PrivateCCA.load(tmp_path / "fits")
    assert np.array_equal(last.transform(X), cca.transform(X)) and last.folder is None
    with pytest.raises(UserError, match="arrays-folder-used"):
        library.PrivateCCA(epsilon=1, folder=tmp_path / "fits" / "fit-1").fit(X, Y)


def test_fits_that_do_not_add_up_are_not_added_up(tmp_path):
    """Noise that can be computed again protects nobody, and what hides a row need not hide all rows of a person."""

    def card(place, groups=None, **options):
        return library.PrivateCCA(epsilon=2, delta=1e-5, folder=tmp_path / place, **options).fit(X, Y, groups=groups).card_

    with pytest.warns(Notice, match="random_state"):
        card("seeded", random_state=0)
    said = card("seeded")
    assert "all fits together have no guarantee" in said and "(4.00" not in said
    groups = np.arange(len(X)) // 2
    card("mixed")
    for given in (groups, None):
        said = card("mixed", given)
        assert "claims nothing for all fits together" in said and "(4.00" not in said and "(6.00" not in said
    card("groups", groups)
    assert "if all used the same rows in the same groups, all fits together are (4.00, 2.00e-5)" in card("groups", groups)


@pytest.mark.parametrize(
    "given",
    [{"n_components": np.int64(3)}, {"dimensions": np.int32(5)}, {"epsilon": np.float32(3)}, {"delta": np.float32(1e-4)}],
    ids=["components", "dimensions", "epsilon", "delta"],
)
def test_numbers_of_numpy_are_numbers(tmp_path, given):
    """As a search over ``np.arange`` gives them: a fit must not end behind its last charge without a file."""
    cca = library.PrivateCCA(**{"epsilon": 3, "folder": tmp_path} | given).fit(X, Y)
    again = library.PrivateCCA.load(tmp_path)
    (name,) = given
    assert getattr(again, name) == given[name] and np.array_equal(again.transform(X), cca.transform(X))


def test_a_damaged_ledger_of_another_fit_is_seen_before_anything_is_spent(tmp_path):
    (tmp_path / "fit-1").mkdir()
    (tmp_path / "fit-1" / "ledger.jsonl").write_text('{"ledger": 1}\n{"step": 0}\n')
    with pytest.raises(UserError, match="ledger-damaged"):
        library.PrivateCCA(epsilon=3, folder=tmp_path).fit(X, Y)
    assert [path.name for path in tmp_path.iterdir()] == ["fit-1"]


def test_heads_go_behind_a_tower_of_dpfed(tmp_path):
    cca = library.PrivateCCA(epsilon=3, folder=tmp_path).fit(X, Y)
    model = TwoTowerModel(torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity())
    give_heads(model, PublishedHeads(load_file(tmp_path / "fit-1" / "heads.safetensors")))
    z, w = cca.transform(X, Y)
    torch.testing.assert_close(model.embed_images(torch.from_numpy(X)), torch.from_numpy(z), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.embed_text(torch.from_numpy(Y)), torch.from_numpy(w), atol=1e-5, rtol=1e-4)


def test_the_commands_show_a_budget_of_arrays(tmp_path, dpfed):
    library.PrivateCCA(epsilon=2, folder=tmp_path / "fits", budget=(5.0, 1e-4)).fit(X, Y)
    for command, said in (("show", "epsilon 5.0, delta 0.0001, for each record"), ("history", "PrivateCCA")):
        code, shown, error = dpfed("budget", command, tmp_path / "fits")
        assert code == 0 and said in shown, error


@pytest.mark.long
def test_a_budget_holds_for_all_fits_on_the_rows(tmp_path):
    cca = library.PrivateCCA(epsilon=2, folder=tmp_path / "fits", budget=(5.0, 1e-4))
    assert "(5.0, 1.00e-4) for each record, of which" in cca.fit(X, Y).card_
    for given in (cca, library.PrivateCCA(epsilon=4.5), library.PrivateCCA(epsilon=4.5, folder=tmp_path / "other")):
        with pytest.raises(UserError, match="has no room"):
            given.set_params(epsilon=4.5).fit(X, Y)
    assert [path.name for path in (tmp_path / "fits").glob("fit-*")] == ["fit-1"]
    order = np.random.default_rng(0).permutation(len(X))
    for kind in ("f4", "f8", "longdouble"):  # the same rows in another order, and in another type
        with pytest.raises(UserError, match="has no room"):
            library.PrivateCCA(epsilon=4.5).fit(X[order].astype(kind), Y[order])
    with pytest.raises(UserError, match="has no room"):
        library.PrivateCCA(epsilon=4.5).fit(torch.from_numpy(X).double(), torch.from_numpy(Y))
    assert "none was set" in library.PrivateCCA(epsilon=4.5).fit(*two_views(300, (24, 16), seed=3)).card_  # other rows
    entries = [json.loads(line) for line in (tmp_path / "fits" / "budget.jsonl").read_text().splitlines()][1:]
    assert [entry["event"] for entry in entries] == ["set", "reserve", "settle"]
    assert entries[2]["steps"] == entries[1]["steps"] == 2 and entries[2]["cost"] == entries[1]["cost"]  # none is given back
    with pytest.warns(Notice, match="was .5.0, 1.00e-4. for each record, and is .9.0"):
        cca.set_params(epsilon=1.0, budget=(9.0, 1e-4)).fit(X, Y)
    assert len(list((tmp_path / "fits").glob("fit-*/cca.json"))) == 2


@pytest.mark.long
def test_a_budget_for_groups_and_none_for_a_seed(tmp_path):
    groups = np.arange(300) // 3
    cca = library.PrivateCCA(epsilon=2, folder=tmp_path, budget=(6.0, 1e-3)).fit(X, Y, groups)
    assert "for each user" in cca.card_
    with pytest.raises(UserError, match="budget-user-names"):
        library.PrivateCCA(epsilon=1).fit(X, Y)
    with pytest.warns(Notice), pytest.raises(UserError, match="arrays-seed-budget"):
        library.PrivateCCA(epsilon=1, random_state=1).fit(X, Y, groups)
    with pytest.raises(UserError, match="own-budget"):
        library.PrivateCCA(epsilon=1, folder=tmp_path / "other", budget="much").fit(X, Y)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("ledger.jsonl", lambda text: text[9:]),
        ("ledger.jsonl", lambda text: text.replace('"digest": "', '"digest": "0')),
        ("cca.json", lambda text: text.replace('"epsilon": 3', '"epsilons": 3')),
        ("cca.json", lambda text: text.replace('"basis": null', '"basis": "0"')),
        ("cca.json", lambda text: json.dumps(json.loads(text) | {"widths": []})),
    ],
    ids=["cut", "another digest", "another parameter", "a basis that is not there", "no widths"],
)
def test_damage_is_a_sentence(tmp_path, fitted, file, change):
    fitted.save(tmp_path / "saved")
    path = tmp_path / "saved" / file
    text = path.read_text()
    path.write_text(change(text))
    assert path.read_text() != text
    with pytest.raises(UserError, match="arrays-damaged|ledger-damaged"):
        library.PrivateCCA.load(tmp_path / "saved")


def test_the_home_folder_is_the_same_wherever_it_is_named(tmp_path, fitted, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    fitted.save("~/saved")
    assert (tmp_path / "saved" / "cca.json").is_file() and library.PrivateCCA.load("~/saved").card_ == fitted.card_


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("dpfed.privacy.ledger.write_atomically", full)
    with pytest.raises(UserError, match="No space left .*arrays-ledger-unwritten"):
        library.PrivateCCA(epsilon=3, folder=tmp_path).fit(X, Y)


def test_fits_do_not_go_into_a_record_store(tmp_path):
    (tmp_path / "store.json").write_text("{}")
    with pytest.raises(UserError, match="arrays-folder-used"):
        library.PrivateCCA(epsilon=3, folder=tmp_path, budget=4.0).fit(X, Y)
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
