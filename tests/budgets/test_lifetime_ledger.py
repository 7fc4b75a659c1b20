"""The book: append-only, checked line by line, and the same whatever the order of its entries."""

import json
import math
import os
import random

import pytest

from dpfed.budgets.ledger import BudgetLedger, Entry, Head
from dpfed.budgets.replicas import read, write_missing
from dpfed.errors import UserError
from dpfed.files.json_lines import append_line
from dpfed.privacy.ledger import link
from dpfed.privacy.renyi_filter import RenyiFilter
from tests.budgets.conftest import PLAN


def head():
    budget = RenyiFilter.of(10, 1e-6)
    return Head(
        budget=1, id="0" * 16, unit="record", fingerprint="f", store="s", orders=list(budget.orders), shares=list(budget.shares)
    )


def entry(event, number=0, of="a", steps=10, **more):
    cost = [float(steps)] * 8
    return Entry.new(
        event, number=number, of=of, what="run", name=of, place=f"/{of}", plan=PLAN.as_dict(), steps=steps, cost=cost, **more
    )


ENTRIES = [
    Entry.new("set", epsilon=10.0, delta=1e-6),
    entry("reserve"),
    entry("reserve", of="b", steps=7),
    entry("settle", 1, steps=4),
    Entry.new("set", number=1, epsilon=12.0, delta=1e-6),
    entry("reserve", of="c", steps=3, instead="b"),
    Entry.new("uncovered", why="an audit: because"),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "budget.jsonl"
    for count in range(1, len(ENTRIES) + 1):
        write_missing(path, BudgetLedger(head(), tuple(ENTRIES[:count])))
    return path


def test_it_reads_back_what_was_written(path):
    budget = read(path)
    assert budget == BudgetLedger(head(), tuple(ENTRIES))
    assert (budget.filter.epsilon, budget.filter.delta) == (12.0, 1e-6)
    assert {id: (one.steps, one.settled, one.least) for id, one in budget.accounts.items()} == {
        "a": (4, True, 4),
        "c": (3, False, 0),
    }
    assert budget.spent == (7.0,) * 8 and len(budget.uncovered) == 1 and read(path.with_name("other")) is None


def test_what_follows_does_not_depend_on_the_order_of_entries():
    """Two machines whose clocks disagree write copies that are put together in any order."""
    budget = BudgetLedger(head(), tuple(ENTRIES))
    for seed in range(20):
        shuffled = BudgetLedger(head(), tuple(random.Random(seed).sample(ENTRIES, len(ENTRIES))))
        assert shuffled.accounts == budget.accounts and shuffled.filter == budget.filter and shuffled.spent == budget.spent


def test_copies_that_grew_apart_become_one_by_what_each_lacks(tmp_path):
    one, other = BudgetLedger(head(), tuple(ENTRIES[:3])), BudgetLedger(head(), (*ENTRIES[:2], *ENTRIES[4:]))
    together = one.with_entries(one.lacks(other))
    backward = other.with_entries(other.lacks(one))
    assert together.accounts == backward.accounts and {e.id for e in together.entries} == {e.id for e in backward.entries}
    path = tmp_path / "book"
    write_missing(path, one)
    write_missing(path, together)
    assert read(path) == together


def test_a_run_in_two_places_costs_the_larger_settlement(path):
    """Its copy elsewhere settled 8 steps; here it settled 4, went on, and settled 5."""
    here = [ENTRIES[0], entry("reserve"), entry("settle", 1, steps=4), entry("reserve", 2), entry("settle", 3, steps=5)]
    account = BudgetLedger(head(), (*here, entry("settle", 1, steps=8))).accounts["a"]
    assert (account.steps, account.cost, account.settled, account.least) == (8, (8.0,) * 8, True, 8)


def test_a_book_without_its_first_line_is_a_sentence(path):
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(UserError, match="budget-lost"):
        assert read(path).filter


def test_every_changed_byte_is_noticed_by_its_line(path):
    content = path.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(content) if byte == ord("\n"))]
    for place in range(0, len(content), 13):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        number = sum(start <= place for start in starts)
        if content[place] == ord("\n") and place == len(content) - 1:  # the last line then looks torn
            continue
        with pytest.raises(UserError, match=f"line ({number}|{number + 1}): .*budget-damaged"):
            read(path)
        with pytest.raises(UserError, match="budget-damaged"):
            write_missing(path, BudgetLedger(head(), tuple(ENTRIES)))
        assert path.read_bytes() == bytes(changed)


def test_lines_that_are_left_out_or_change_places_are_noticed(path):
    lines = path.read_text().splitlines(keepends=True)
    for damaged in (lines[:2] + lines[3:], [lines[0], lines[2], lines[1], *lines[3:]], lines[1:]):
        path.write_text("".join(damaged))
        with pytest.raises(UserError, match="budget-damaged"):
            read(path)


def test_a_line_of_another_kind_is_noticed(path):
    chain = json.loads(path.read_text().splitlines()[-1])["chain"]
    line = {"id": "1" * 16, "event": "refund", "day": "2026-01-01"}
    path.write_text(path.read_text() + json.dumps({**line, "chain": link(chain, line)}) + "\n")
    with pytest.raises(UserError, match=f"line {len(ENTRIES) + 2}: .*budget-damaged"):
        read(path)


def test_an_entry_is_on_disk_when_the_call_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path.read_bytes()))
    write_missing(path, BudgetLedger(head(), (*ENTRIES, entry("reserve", of="d"))))
    assert synced[-1] == path.read_bytes() and b'"d"' in synced[-1]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")])
def test_a_book_that_cannot_be_written_is_a_sentence(path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("dpfed.budgets.replicas.append_line", fail)
    with pytest.raises(UserError, match=f"{error.strerror}.*replica-not-writable"):
        write_missing(path, BudgetLedger(head(), (*ENTRIES, entry("reserve", of="d"))))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("key", ["epsilon", "delta", "cost", "steps", "number"])
def test_a_line_with_meaningless_numbers_is_damage(path, key, value):
    """An epsilon without end admits everything, and a cost below zero gives budget back."""
    line = json.loads(path.read_text().splitlines()[1 if key in ("epsilon", "delta") else 2])
    chain = json.loads(path.read_text().splitlines()[-1])["chain"]
    line |= {"id": "f" * 16, key: [value] * 8 if key == "cost" else value}
    del line["chain"]
    append_line(path, {**line, "chain": link(chain, line)})
    with pytest.raises(UserError, match="line 9: .*budget-damaged"):
        read(path)


@pytest.mark.parametrize("orders, shares", [([math.nan] * 8, None), ([0.5] * 8, None), (None, [-1.0] * 8), (None, [0.2] * 8)])
def test_a_first_line_that_is_no_filter_is_damage(tmp_path, orders, shares):
    line = head().model_dump() | ({"orders": orders} if orders else {"shares": shares})
    append_line(tmp_path / "book", {**line, "chain": link("", line)})
    with pytest.raises(UserError, match="line 1: .*budget-damaged"):
        read(tmp_path / "book")
