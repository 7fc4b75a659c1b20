"""Whose a budget is: copies, older copies, imports done again, and stores whose book was removed, are recognised."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest

from dpfed.budgets.refusals import related
from dpfed.budgets.registry import BUDGET_LEDGER, budgets_of, registry
from dpfed.budgets.replicas import read
from dpfed.budgets.spending import reserve, set_budget
from dpfed.data.store.layout import HEADER
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from tests.budgets.conftest import NAMES, write_store


@pytest.fixture
def budgeted(store, reservation):
    """A store with a budget, of which one run has taken a part."""
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1)])
    return store


def taken(store):
    (entry,) = budgets_of(store)
    return len(entry.budget.accounts)


def test_a_store_without_a_budget_is_left_alone(store, reservation, own_registry):
    before = sorted(store.path.rglob("*"))
    assert budgets_of(store) == [] and reserve(store, [reservation(1)]) == []
    assert sorted(store.path.rglob("*")) == before and not own_registry.exists()


def test_another_store_than_the_budgeted_one_is_not_written_to(budgeted, tmp_path, reservation):
    other = write_store(tmp_path / "other", [f"someone-{number}" for number in range(50)])
    before = sorted(other.path.rglob("*"))
    assert reserve(other, [reservation(1)]) == [] and sorted(other.path.rglob("*")) == before


def test_both_copies_are_equal_and_the_shelf_is_the_owners(budgeted):
    (entry,) = budgets_of(budgeted)
    assert read(budgeted.path / BUDGET_LEDGER) == entry.budget == read(registry() / f"{entry.budget.head.id}.jsonl")
    assert registry().stat().st_mode & 0o077 == 0


def test_a_removed_book_is_written_again_from_the_shelf(budgeted, reservation):
    (budgeted.path / BUDGET_LEDGER).unlink()
    (entry,) = budgets_of(budgeted)
    assert entry.by_name is None and len(entry.budget.accounts) == 1
    reserve(budgeted, [reservation(2)])
    assert len(read(budgeted.path / BUDGET_LEDGER).accounts) == 2


@pytest.mark.parametrize("kept", [0, 40])
def test_a_copy_cut_short_is_written_again_from_the_other(budgeted, reservation, kept):
    (entry,) = budgets_of(budgeted)
    copies = [budgeted.path / BUDGET_LEDGER, registry() / f"{entry.budget.head.id}.jsonl"]
    for number, copy in enumerate(copies, start=2):
        os.truncate(copy, kept)
        assert taken(budgeted) == number - 1
        reserve(budgeted, [reservation(number)])
        assert len(read(copy).accounts) == number


@pytest.mark.parametrize("kept", [0, 40])
@pytest.mark.parametrize("other", ["cut", "gone"])
@pytest.mark.parametrize("first", [True, False], ids=["store", "shelf"])
def test_a_budget_without_a_readable_copy_is_not_none(budgeted, reservation, kept, other, first):
    (entry,) = budgets_of(budgeted)
    copies = [budgeted.path / BUDGET_LEDGER, registry() / f"{entry.budget.head.id}.jsonl"]
    here, there = copies if first else reversed(copies)
    os.truncate(here, kept)
    os.truncate(there, kept) if other == "cut" else there.unlink()
    for asked in (
        lambda: budgets_of(budgeted),
        lambda: reserve(budgeted, [reservation(2)]),
        lambda: set_budget(budgeted, 99, 1e-6),
    ):
        with pytest.raises(UserError, match="line 1: .*budget-damaged"):
            asked()


def test_files_of_the_file_system_are_no_books(budgeted, own_registry):
    (own_registry / "._0123456789abcdef.jsonl").write_bytes(b"\0\5\x16\7\n")
    (own_registry / "._0123456789abcdef.names.json").write_bytes(b"\0\5\x16\7\n")
    assert taken(budgeted) == taken(RecordStore.open(budgeted.path))
    for path in own_registry.iterdir():
        if not path.name.startswith("."):
            path.unlink()
    (budgeted.path / BUDGET_LEDGER).unlink()
    assert not budgets_of(budgeted)


def test_few_equal_names_are_not_said_to_be_none(budgeted):
    (found,) = budgets_of(budgeted)
    few = dataclasses.replace(found, by_name=1 / 256, equal=1 / 256)
    assert related(few, budgeted).startswith("less than 1% of the") and "and less than 1% of these" in related(few, budgeted)


def test_a_book_that_is_a_link_to_nowhere_is_not_taken_for_none(budgeted, tmp_path):
    shutil.rmtree(registry())
    (budgeted.path / BUDGET_LEDGER).unlink()
    (budgeted.path / BUDGET_LEDGER).symlink_to(tmp_path / "not mounted")
    with pytest.raises(UserError, match="budget-damaged"):
        budgets_of(budgeted)


def test_a_removed_shelf_is_written_again_from_the_store(budgeted, reservation):
    shutil.rmtree(registry())
    assert taken(budgeted) == 1
    reserve(budgeted, [reservation(2)])
    assert len(read(next(registry().glob("*.jsonl"))).accounts) == 2 and next(registry().glob("*.names.json"))


def test_an_old_copy_hides_nothing_of_the_shelfs_book(budgeted, reservation):
    (path,) = registry().glob("*.jsonl")
    shutil.copy(path, path.with_stem(f"{path.stem}_old"))
    reserve(budgeted, [reservation(2)])
    (budgeted.path / BUDGET_LEDGER).unlink()
    assert taken(budgeted) == 2


def test_an_older_book_is_given_what_it_lacks(budgeted, reservation):
    older = (budgeted.path / BUDGET_LEDGER).read_bytes()
    reserve(budgeted, [reservation(2)])
    (budgeted.path / BUDGET_LEDGER).write_bytes(older)
    assert taken(budgeted) == 2
    reserve(budgeted, [reservation(3)])
    assert len(read(budgeted.path / BUDGET_LEDGER).accounts) == 3


@pytest.mark.parametrize("budget", ["kept", "removed", "older"])
def test_a_copy_of_a_store_spends_from_the_same_budget(budgeted, tmp_path, reservation, budget):
    copy = RecordStore.open(shutil.copytree(budgeted.path, tmp_path / "copy"))
    reserve(budgeted, [reservation(2)])
    if budget == "removed":
        (copy.path / BUDGET_LEDGER).unlink()
    assert taken(copy) == 2
    reserve(copy, [reservation(3)])
    assert taken(budgeted) == taken(copy) == 3


@pytest.mark.parametrize(
    "names", [NAMES, NAMES[:-1], NAMES[500:], [*NAMES, "somebody-else"]], ids=["same", "less", "half", "more"]
)
def test_an_import_done_again_is_recognised_by_its_names(budgeted, tmp_path, reservation, names):
    """Its fingerprint is another, as every import of private records draws a key."""
    again = write_store(tmp_path / "again", names)
    assert again.contents != budgeted.contents
    (entry,) = budgets_of(again)
    assert entry.by_name == pytest.approx(len(set(names) & set(NAMES)) / len(NAMES), abs=0.1)
    reserve(again, [reservation(2)])
    assert taken(budgeted) == 2 and not (again.path / BUDGET_LEDGER).exists()


def test_a_copy_with_another_header_is_known_by_its_names(budgeted, tmp_path):
    copy = shutil.copytree(budgeted.path, tmp_path / "copy")
    header = json.loads((copy / HEADER).read_text())
    header["contents"]["fingerprint"] = "0" * 32
    header["public"] = True
    (copy / HEADER).write_text(json.dumps(header))
    with pytest.raises(UserError, match="budget-other-records"):
        budgets_of(RecordStore.open(copy))
    (copy / BUDGET_LEDGER).unlink()
    (entry,) = budgets_of(RecordStore.open(copy))
    assert entry.by_name == 1


def test_equal_names_get_their_own_budget_only_in_words(budgeted, tmp_path, reservation):
    other = write_store(tmp_path / "other", NAMES, seed=1)
    with pytest.raises(
        UserError, match="100% of the budget's record names .* 0% .*other records.*--distinct 'WHY'.*budget-names"
    ):
        set_budget(other, 100, 1e-6)
    budget = set_budget(other, 5, 1e-6, distinct="another hospital's, which numbers its patients alike")
    assert list(budget.head.distinct.values()) == ["another hospital's, which numbers its patients alike"]
    reserve(other, [reservation(2)])
    assert taken(other) == 1 and taken(budgeted) == 1


@pytest.mark.long
def test_equal_names_alone_are_a_question(budgeted, tmp_path, reservation):
    """Pictures 0.png, 1.png, ... are anybody's: what they show tells whose they are."""
    same, other = write_store(tmp_path / "same", NAMES), write_store(tmp_path / "other", NAMES, seed=1)
    part = write_store(tmp_path / "part", [*NAMES[:100], *(f"x{number}" for number in range(50))])
    equal = {store.name: budgets_of(RecordStore.open(store))[0] for store in (same.path, other.path, part.path)}
    assert {name: (one.equal, one.asks) for name, one in equal.items()} == {
        "same": (1.0, False),
        "other": (pytest.approx(0, abs=0.01), True),
        "part": (1.0, False),
    }
    for store in (same, other, part):  # in doubt, a budget holds
        with pytest.raises(UserError, match="budget-no-room") as refused:
            reserve(store, [reservation(2, steps=100_000)])
        asked = "Are these other records?" in str(refused.value)
        assert asked == (store is other) and ("--distinct 'WHY'" in str(refused.value)) == asked
    for store in (same, part):
        with pytest.raises(UserError, match="these are the records of .*budget-same-records"):
            set_budget(store, 8, 1e-6, distinct="another hospital's")
    set_budget(other, 99, 1e-6, distinct="another hospital's")
    reserve(other, [reservation(2, steps=1000)])
    assert taken(budgeted) == 1


def test_equal_captions_tell_where_images_were_rescaled(tmp_path, reservation):
    def captioned(name, size, seed=0):
        pictures = np.random.default_rng(seed).integers(0, 255, (50, 16, 16, 3), dtype=np.uint8)
        with StoreWriter(tmp_path / name, name="p", kind="image-text", size=size) as writer:
            for number, picture in enumerate(pictures):
                writer.add(RecordInput(f"{number}.png", picture, (f"record {number} of {seed}", "a photo")))
        return RecordStore.open(tmp_path / name)

    set_budget(captioned("first", 16), 8, 1e-6)
    assert [(one.equal, one.asks) for one in budgets_of(captioned("again", 8))] == [(1.0, False)]
    assert [(one.equal, one.asks) for one in budgets_of(captioned("another", 16, seed=1))] == [(0.0, True)]


def test_a_sample_of_names_asks_until_its_store_is_met(budgeted, tmp_path, reservation):
    """As older versions of dpfed wrote it."""
    (path,) = registry().glob("*.names.json")
    path.write_text(json.dumps(json.loads(path.read_text())["names"]))
    again = write_store(tmp_path / "again", NAMES)
    assert [(one.by_name, one.equal, one.asks) for one in budgets_of(again)] == [(1.0, None, True)]
    reserve(budgeted, [reservation(2)])
    assert [(one.by_name, one.equal, one.asks) for one in budgets_of(again)] == [(1.0, 1.0, False)]


def test_two_users_with_shelves_of_their_own_meet_in_the_store(budgeted, reservation, monkeypatch, tmp_path):
    first = registry()
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "another user's"))
    assert taken(budgeted) == 1
    reserve(budgeted, [reservation(2)])
    monkeypatch.setenv("DPFED_BUDGETS", str(first))
    assert taken(budgeted) == 2


def test_a_copy_from_another_machine_brings_its_spending(budgeted, reservation, monkeypatch, tmp_path):
    first, copy = registry(), RecordStore.open(shutil.copytree(budgeted.path, tmp_path / "copy"))
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "another machine's"))
    reserve(copy, [reservation(2)])
    set_budget(copy, 9, 1e-6)
    monkeypatch.setenv("DPFED_BUDGETS", str(first))
    reserve(budgeted, [reservation(3)])
    assert taken(copy) == 3
    reserve(copy, [reservation(4)])
    assert taken(budgeted) == 4 and budgets_of(budgeted)[0].budget.filter.epsilon == 9


def test_a_copys_new_budget_does_not_replace_the_first(budgeted, reservation, monkeypatch, tmp_path):
    """A hostile copy: without its book, under another user's name, with a budget of a hundred."""
    first, copy = registry(), RecordStore.open(shutil.copytree(budgeted.path, tmp_path / "copy"))
    (copy.path / BUDGET_LEDGER).unlink()
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "another user's"))
    set_budget(copy, 100, 1e-6)
    monkeypatch.setenv("DPFED_BUDGETS", str(first))
    assert sorted(entry.budget.filter.epsilon for entry in budgets_of(copy)) == [8, 100]
    with pytest.raises(UserError, match="budget-no-room"):
        reserve(copy, [reservation(9, steps=100_000)])
    reserve(copy, [reservation(2)])
    assert {entry.budget.filter.epsilon: len(entry.budget.accounts) for entry in budgets_of(budgeted)} == {8: 2, 100: 1}


def test_a_damaged_book_moved_away_is_replaced_by_its_copy(budgeted, reservation):
    path = budgeted.path / BUDGET_LEDGER
    path.write_bytes(path.read_bytes().replace(b"run-1", b"run-7"))
    with pytest.raises(UserError, match="line 3: .*its other copy.*budget-damaged"):
        reserve(budgeted, [reservation(2)])
    path.rename(path.with_name("damaged"))
    reserve(budgeted, [reservation(2)])
    assert len(read(path).accounts) == 2


def test_a_book_of_another_store_is_refused(budgeted, tmp_path):
    other = write_store(tmp_path / "other", [f"someone-{number}" for number in range(50)])
    shutil.copy(budgeted.path / BUDGET_LEDGER, other.path / BUDGET_LEDGER)
    with pytest.raises(UserError, match="budget-other-records"):
        budgets_of(other)


def test_the_shelf_holds_no_name_and_compares_with_its_secret(budgeted):
    assert b"person-" not in b"".join(path.read_bytes() for path in registry().iterdir())
    (registry() / "secret.key").unlink()
    with pytest.raises(UserError, match="secret.key .*registry-key-damaged"):
        budgets_of(budgeted)


@pytest.mark.parametrize(
    "content", ["[NaN]", "[0.5, Infinity]", "[-1.0]", "7", "[[0.5]]", "null", '["x"]', "{", '{"names": [0.5], "contents": []}']
)
def test_a_sample_of_names_that_is_damaged_hides_no_budget(budgeted, tmp_path, content):
    again = write_store(tmp_path / "again", NAMES)
    next(registry().glob("*.names.json")).write_text(content)
    with pytest.raises(UserError, match="registry-sample"):
        budgets_of(again)


def test_a_changed_store_is_not_taken_for_the_one_read(budgeted, tmp_path):
    """Somebody gives it the header's fingerprint of a store that shares no name."""
    other = write_store(tmp_path / "other", [f"other-{number}" for number in range(len(NAMES))])
    assert budgets_of(other) == []
    again = write_store(tmp_path / "again", NAMES)
    header = json.loads((again.path / HEADER).read_text())
    header["contents"] = {"fingerprint": other.contents, "key": other.contents_key}
    (again.path / HEADER).write_text(json.dumps(header))
    assert [one.by_name for one in budgets_of(RecordStore.open(again.path))] == [1.0]
