"""Whose a budget is: copies, older copies, imports done again, and stores whose book was removed, are recognised."""

import json
import os
import shutil

import pytest

from dpfed.budgets import shelf as shelf_room
from dpfed.budgets.copies import read
from dpfed.budgets.shelf import BOOK, budgets_of, shelf
from dpfed.budgets.spending import reserve, set_budget
from dpfed.data.store.layout import HEADER
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.budgets.conftest import NAMES, write_store


@pytest.fixture
def budgeted(store, claim):
    """A store with a budget, of which one run has taken a part."""
    set_budget(store, 8, 1e-6)
    reserve(store, [claim(1)])
    return store


def taken(store):
    (found,) = budgets_of(store)
    return len(found.book.accounts)


def test_a_store_without_a_budget_is_left_alone(store, claim, own_shelf):
    before = sorted(store.path.rglob("*"))
    assert budgets_of(store) == [] and reserve(store, [claim(1)]) == []
    assert sorted(store.path.rglob("*")) == before and not own_shelf.exists()


def test_another_store_than_the_budgeted_one_is_not_written_to(budgeted, tmp_path, claim):
    other = write_store(tmp_path / "other", [f"someone-{number}" for number in range(50)])
    before = sorted(other.path.rglob("*"))
    assert reserve(other, [claim(1)]) == [] and sorted(other.path.rglob("*")) == before


def test_both_copies_hold_the_same_and_only_the_owner_sees_the_shelf(budgeted):
    (found,) = budgets_of(budgeted)
    assert read(budgeted.path / BOOK) == found.book == read(shelf() / f"{found.book.head.id}.jsonl")
    assert shelf().stat().st_mode & 0o077 == 0


def test_a_book_that_was_removed_is_known_on_the_shelf_and_written_again(budgeted, claim):
    (budgeted.path / BOOK).unlink()
    (found,) = budgets_of(budgeted)
    assert found.missing and len(found.book.accounts) == 1
    reserve(budgeted, [claim(2)])
    assert len(read(budgeted.path / BOOK).accounts) == 2


@pytest.mark.parametrize("kept", [0, 40])
def test_a_copy_whose_first_line_is_cut_short_is_written_again_from_the_other_one(budgeted, claim, kept):
    (found,) = budgets_of(budgeted)
    copies = [budgeted.path / BOOK, shelf() / f"{found.book.head.id}.jsonl"]
    for number, copy in enumerate(copies, start=2):
        os.truncate(copy, kept)
        assert taken(budgeted) == number - 1
        reserve(budgeted, [claim(number)])
        assert len(read(copy).accounts) == number


@pytest.mark.parametrize("kept", [0, 40])
@pytest.mark.parametrize("other", ["cut", "gone"])
@pytest.mark.parametrize("first", [True, False], ids=["store", "shelf"])
def test_a_budget_of_which_no_copy_can_be_read_is_not_taken_for_none(budgeted, claim, kept, other, first):
    (found,) = budgets_of(budgeted)
    copies = [budgeted.path / BOOK, shelf() / f"{found.book.head.id}.jsonl"]
    here, there = copies if first else reversed(copies)
    os.truncate(here, kept)
    os.truncate(there, kept) if other == "cut" else there.unlink()
    for asked in (lambda: budgets_of(budgeted), lambda: reserve(budgeted, [claim(2)]), lambda: set_budget(budgeted, 99, 1e-6)):
        with pytest.raises(UserError, match="damaged at line 1"):
            asked()


def test_a_book_that_is_a_link_to_nowhere_is_not_taken_for_none(budgeted, tmp_path):
    shutil.rmtree(shelf())
    (budgeted.path / BOOK).unlink()
    (budgeted.path / BOOK).symlink_to(tmp_path / "not mounted")
    with pytest.raises(UserError, match="damaged"):
        budgets_of(budgeted)


def test_a_shelf_that_was_removed_is_written_again_from_the_store(budgeted, claim):
    shutil.rmtree(shelf())
    assert taken(budgeted) == 1
    reserve(budgeted, [claim(2)])
    assert len(read(next(shelf().glob("*.jsonl"))).accounts) == 2 and next(shelf().glob("*.names.json"))


def test_an_old_copy_beside_a_book_on_the_shelf_hides_nothing_of_it(budgeted, claim):
    (path,) = shelf().glob("*.jsonl")
    shutil.copy(path, path.with_stem(f"{path.stem}_old"))
    reserve(budgeted, [claim(2)])
    (budgeted.path / BOOK).unlink()
    assert taken(budgeted) == 2


def test_an_older_book_is_given_what_it_lacks(budgeted, claim):
    older = (budgeted.path / BOOK).read_bytes()
    reserve(budgeted, [claim(2)])
    (budgeted.path / BOOK).write_bytes(older)
    assert taken(budgeted) == 2
    reserve(budgeted, [claim(3)])
    assert len(read(budgeted.path / BOOK).accounts) == 3


@pytest.mark.parametrize("book", ["kept", "removed", "older"])
def test_a_copy_of_a_store_spends_from_the_same_budget(budgeted, tmp_path, claim, book):
    copy = RecordStore.open(shutil.copytree(budgeted.path, tmp_path / "copy"))
    reserve(budgeted, [claim(2)])
    if book == "removed":
        (copy.path / BOOK).unlink()
    assert taken(copy) == 2
    reserve(copy, [claim(3)])
    assert taken(budgeted) == taken(copy) == 3


@pytest.mark.parametrize(
    "names", [NAMES, NAMES[:-1], NAMES[500:], [*NAMES, "somebody-else"]], ids=["same", "less", "half", "more"]
)
def test_an_import_done_again_is_recognised_by_its_names(budgeted, tmp_path, claim, names):
    """Its fingerprint is another, as every import of private records draws a key."""
    again = write_store(tmp_path / "again", names)
    assert again.contents != budgeted.contents
    (found,) = budgets_of(again)
    assert found.by_name == pytest.approx(len(set(names) & set(NAMES)) / len(NAMES), abs=0.1)
    reserve(again, [claim(2)])
    assert taken(budgeted) == 2 and not (again.path / BOOK).exists()


def test_a_copy_whose_header_was_changed_is_recognised_by_its_names(budgeted, tmp_path):
    copy = shutil.copytree(budgeted.path, tmp_path / "copy")
    header = json.loads((copy / HEADER).read_text())
    header["contents"]["fingerprint"] = "0" * 32
    header["public"] = True
    (copy / HEADER).write_text(json.dumps(header))
    with pytest.raises(UserError, match="ledger of other records"):
        budgets_of(RecordStore.open(copy))
    (copy / BOOK).unlink()
    (found,) = budgets_of(RecordStore.open(copy))
    assert found.by_name == 1


def test_a_budget_of_its_own_is_refused_to_records_of_the_same_names_unless_said_in_words(budgeted, tmp_path, claim):
    other = write_store(tmp_path / "other", NAMES)
    with pytest.raises(UserError, match="100% of those of .*--distinct"):
        set_budget(other, 100, 1e-6)
    book = set_budget(other, 5, 1e-6, distinct="another hospital's, which numbers its patients alike")
    assert list(book.head.distinct.values()) == ["another hospital's, which numbers its patients alike"]
    reserve(other, [claim(2)])
    assert taken(other) == 1 and taken(budgeted) == 1


def test_two_users_with_shelves_of_their_own_meet_in_the_store(budgeted, claim, monkeypatch, tmp_path):
    first = shelf()
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "another user's"))
    assert taken(budgeted) == 1
    reserve(budgeted, [claim(2)])
    monkeypatch.setenv("DPFED_BUDGETS", str(first))
    assert taken(budgeted) == 2


def test_a_copy_that_came_back_from_another_machine_brings_what_it_spent(budgeted, claim, monkeypatch, tmp_path):
    first, copy = shelf(), RecordStore.open(shutil.copytree(budgeted.path, tmp_path / "copy"))
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "another machine's"))
    reserve(copy, [claim(2)])
    set_budget(copy, 9, 1e-6)
    monkeypatch.setenv("DPFED_BUDGETS", str(first))
    reserve(budgeted, [claim(3)])
    assert taken(copy) == 3
    reserve(copy, [claim(4)])
    assert taken(budgeted) == 4 and budgets_of(budgeted)[0].book.filter.epsilon == 9


def test_a_budget_that_was_set_anew_for_a_copy_elsewhere_does_not_replace_the_first(budgeted, claim, monkeypatch, tmp_path):
    """A hostile copy: without its book, under another user's name, with a budget of a hundred."""
    first, copy = shelf(), RecordStore.open(shutil.copytree(budgeted.path, tmp_path / "copy"))
    (copy.path / BOOK).unlink()
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "another user's"))
    set_budget(copy, 100, 1e-6)
    monkeypatch.setenv("DPFED_BUDGETS", str(first))
    assert sorted(found.book.filter.epsilon for found in budgets_of(copy)) == [8, 100]
    with pytest.raises(UserError, match="no room"):
        reserve(copy, [claim(9, steps=100_000)])
    reserve(copy, [claim(2)])
    assert {found.book.filter.epsilon: len(found.book.accounts) for found in budgets_of(budgeted)} == {8: 2, 100: 1}


def test_a_damaged_book_is_refused_and_the_other_copy_takes_its_place_when_it_is_moved_away(budgeted, claim):
    path = budgeted.path / BOOK
    path.write_bytes(path.read_bytes().replace(b"run-1", b"run-7"))
    with pytest.raises(UserError, match="damaged at line 3.*its other copy"):
        reserve(budgeted, [claim(2)])
    path.rename(path.with_name("damaged"))
    reserve(budgeted, [claim(2)])
    assert len(read(path).accounts) == 2


def test_a_book_of_another_store_is_refused(budgeted, tmp_path):
    other = write_store(tmp_path / "other", [f"someone-{number}" for number in range(50)])
    shutil.copy(budgeted.path / BOOK, other.path / BOOK)
    with pytest.raises(UserError, match="ledger of other records"):
        budgets_of(other)


def test_the_shelf_holds_no_name_and_nothing_is_compared_without_its_secret(budgeted):
    known = b"".join(path.read_bytes() for path in shelf().iterdir())
    assert b"person-" not in known
    (shelf() / "secret.key").unlink()
    with pytest.raises(UserError, match="secret.key is missing or damaged"):
        budgets_of(budgeted)


@pytest.mark.parametrize("share", ["NaN", "Infinity", "-1.0", "2.0"])
def test_a_share_that_is_none_is_found_again(budgeted, tmp_path, monkeypatch, share):
    monkeypatch.setattr(shelf_room, "_REMEMBERED", 1)
    again = write_store(tmp_path / "again", NAMES)
    assert [one.by_name for one in budgets_of(again)] == [1.0]
    (kept,) = shelf().glob("*.shares.json")
    kept.write_text(kept.read_text().replace("1.0", share))
    assert [one.by_name for one in budgets_of(again)] == [1.0]


@pytest.mark.parametrize("content", ["[NaN]", "[0.5, Infinity]", "[-1.0]", "7", "[[0.5]]", "null", '["x"]', "{"])
def test_a_sample_of_names_that_is_damaged_hides_no_budget(budgeted, tmp_path, content):
    again = write_store(tmp_path / "again", NAMES)
    next(shelf().glob("*.names.json")).write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        budgets_of(again)


def test_a_large_store_that_is_changed_is_not_taken_for_the_one_that_was_read(budgeted, tmp_path, monkeypatch):
    """Somebody gives it the header's fingerprint of a store that shares no name."""
    monkeypatch.setattr(shelf_room, "_REMEMBERED", 1)
    other = write_store(tmp_path / "other", [f"other-{number}" for number in range(len(NAMES))])
    assert budgets_of(other) == []
    again = write_store(tmp_path / "again", NAMES)
    header = json.loads((again.path / HEADER).read_text())
    header["contents"] = {"fingerprint": other.contents, "key": other.contents_key}
    (again.path / HEADER).write_text(json.dumps(header))
    assert [one.by_name for one in budgets_of(RecordStore.open(again.path))] == [1.0]
