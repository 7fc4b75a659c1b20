"""Reserving and settling: what fits, who may, and that neither a race nor a crash gives any of it away."""

import dataclasses
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dpfed.arrays.fitting import Wanted, plan_of
from dpfed.arrays.records import ArrayRecords
from dpfed.arrays.rows import rows_of
from dpfed.budgets import replicas
from dpfed.budgets.given import numbers_of
from dpfed.budgets.refusals import does_not_fit, largest_epsilon, most_steps
from dpfed.budgets.registry import BUDGET_LEDGER, budgets_of, registry
from dpfed.budgets.reservations import Reservation
from dpfed.budgets.spending import note_uncovered, reserve, set_budget, settle
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.renyi_filter import added
from tests.budgets.conftest import NAMES, PLAN, write_store
from tests.patience import at_most


def budget_of(store):
    (entry,) = budgets_of(store)
    return entry.budget


def test_what_is_taken_is_the_sum_of_the_runs_by_an_accountant(store, reservation):
    set_budget(store, 8, 1e-6)
    plans = [reservation(1), reservation(2, noise_multiplier=3.0, steps=400), reservation(3, batch=200, noise_multiplier=6.0)]
    for one in plans:
        reserve(store, [one])
    budget = budget_of(store)
    accountant = RdpAccountant(budget.head.orders)
    for one in plans:
        accountant.compose(one.plan.mechanism.event(one.plan.steps))
    assert budget.spent == pytest.approx(tuple(accountant._rdp), rel=1e-12)


@pytest.mark.long
def test_runs_are_admitted_until_the_budget_is_full(store, reservation):
    """The oracle composes all of them at each order, at its share of delta, and takes the best order."""
    set_budget(store, 8, 1e-6)
    budget = budget_of(store).filter
    for number in range(1, 100):
        spent = []
        for order, share in zip(budget.orders, budget.shares, strict=True):
            accountant = RdpAccountant([order])
            accountant.compose(PLAN.mechanism.event(PLAN.steps * number))
            spent.append(accountant.get_epsilon(share * budget.delta))
        if min(spent) > budget.epsilon:
            break
        reserve(store, [reservation(number)])
    assert number > 3
    with pytest.raises(UserError, match="budget-no-room"):
        reserve(store, [reservation(number)])


@pytest.mark.long
def test_a_plan_too_large_is_refused_with_what_still_fits(store, reservation):
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1, steps=300)])
    large = reservation(2, steps=2000)
    with pytest.raises(UserError) as refused:
        reserve(store, [large])
    budget = budget_of(store)
    epsilon, sigma = largest_epsilon(budget.filter, budget.spent, large.plan)
    steps = most_steps(budget.filter, budget.spent, large.plan)
    assert all(said in str(refused.value) for said in (f"epsilon {epsilon:g}", f"{sigma:g}", f"{steps:,} steps"))
    assert len(budget.accounts) == 1  # nothing was reserved
    fitting = PrivacyPlan.calibrate(1000, 50, 2000, epsilon, 1e-4, group_size=5, clip_norm=1.0, accountant="rdp")
    assert fitting.noise.multiplier == sigma
    reserve(store, [reservation(2, noise_multiplier=sigma, steps=2000)], dry=True)
    larger = PrivacyPlan.calibrate(1000, 50, 2000, 1.02 * epsilon, 1e-4, group_size=5, clip_norm=1.0, accountant="rdp")
    with pytest.raises(UserError, match="budget-no-room"):
        reserve(store, [reservation(2, noise_multiplier=larger.noise.multiplier, steps=2000)], dry=True)
    reserve(store, [reservation(2, steps=steps)], dry=True)
    with pytest.raises(UserError, match="budget-no-room"):
        reserve(store, [reservation(2, steps=steps + 1)], dry=True)


@pytest.mark.parametrize(
    "changes", [{"noise_kind": "discrete"}, {"noise_kind": "discrete", "clip_norm": 100.0}, {"batch": 1000}]
)
def test_every_kind_of_plan_is_told_what_fits(store, changes):
    plan = PLAN.replace(steps=2000, **changes)
    set_budget(store, 4, 1e-6)
    budget = budget_of(store)
    epsilon, sigma = largest_epsilon(budget.filter, budget.spent, plan)
    assert "With this number of steps, epsilon" in does_not_fit(budget.filter, budget.spent, [plan], "B", "W")
    assert plan.replace(noise_multiplier=sigma).epsilon() <= epsilon


@pytest.mark.long
def test_steps_that_a_method_fixes_are_no_way_out(store):
    """All of a fit's steps or none: half of it releases nothing."""
    set_budget(store, 4, 1e-6)
    budget = budget_of(store)
    records = ArrayRecords(*(rows_of(np.eye(9) + 1, name) for name in "XY"), None, store.path)
    epsilon, _ = largest_epsilon(budget.filter, budget.spent, plan_of(Wanted(6.0, 1e-6), records))
    plan = plan_of(Wanted(1.01 * epsilon, 1e-6), records)
    assert budget.filter.times(budget.spent, budget.filter.curve(plan.mechanism, 1)) >= 1
    assert "steps with" not in does_not_fit(budget.filter, budget.spent, [plan], "B", "W")
    assert most_steps(budget.filter, budget.spent, plan_of(Wanted(epsilon, 1e-6), records)) == 2


def test_several_plans_are_reserved_together_or_not_at_all(store, reservation):
    set_budget(store, 8, 1e-6)
    with pytest.raises(UserError, match="room for these runs: .* the 3 runs take .*budget-no-room"):
        reserve(store, [reservation(number, steps=500) for number in range(3)])
    assert budget_of(store).accounts == {}


def test_what_is_reserved_once_is_not_reserved_again(store, reservation):
    set_budget(store, 8, 1e-6)
    for charged in (0, 0, 60):
        reserve(store, [reservation(1, charged)])
    assert len(budget_of(store).entries) == 2


def test_a_settled_run_costs_its_charges_and_may_go_on(store, reservation):
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1)])
    whole = budget_of(store).spent
    settle(store, (), reservation(1, 40))
    assert budget_of(store).spent == budget_of(store).filter.curve(PLAN.mechanism, 40) < whole
    settle(store, (), reservation(1, 40))  # again changes nothing
    reserve(store, [reservation(1, 40)])
    assert budget_of(store).spent == whole
    with pytest.raises(UserError, match="settled 40 .*budget-steps-lost"):
        settle(store, (), reservation(1, 39))
    settle(store, (), reservation(1, 100))
    reserve(store, [reservation(1, 100)])
    assert budget_of(store).spent == whole and len(budget_of(store).entries) == 5


def test_nothing_is_written_where_no_budget_holds(store, reservation):
    before = sorted(store.path.iterdir())
    assert settle(store, (), reservation(1, 40)) == settle(None, ("0" * 16,), reservation(1, 40)) == []
    assert sorted(store.path.iterdir()) == before and not registry().exists()


def test_an_older_copy_of_a_settled_run_is_refused(store, reservation):
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1)])
    settle(store, (), reservation(1, 100))
    with pytest.raises(UserError, match="settled 100 .*budget-older-copy"):
        reserve(store, [reservation(1, 60)])


def test_a_copied_run_is_refused_and_a_moved_one_is_not(store, reservation, tmp_path):
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1)])
    there = {reservation(1).place}
    copy = dataclasses.replace(reservation(1, 30), place=tmp_path / "copy", is_at=there.__contains__)
    for spend in (lambda: reserve(store, [copy]), lambda: settle(store, (), copy)):
        with pytest.raises(UserError, match="copy of .*run-1, .*budget-run-copied"):
            spend()
    there.clear()
    reserve(store, [copy])
    spent = budget_of(store).filter.curve(PLAN.mechanism, 100)
    assert budget_of(store).spent == spent and len(budget_of(store).accounts) == 1
    original = dataclasses.replace(reservation(1, 30), is_at={copy.place}.__contains__)
    with pytest.raises(UserError, match="budget-run-copied"):
        reserve(store, [original])


def test_a_place_that_nobody_may_look_into_counts_as_another_one(store, reservation, tmp_path):
    def is_at(place):
        raise PermissionError(13, "Permission denied")

    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1)])
    with pytest.raises(UserError, match="budget-run-copied"):
        reserve(store, [dataclasses.replace(reservation(1), place=tmp_path / "moved", is_at=is_at)])


@pytest.mark.parametrize("change", [{"steps": 101}, {"noise_multiplier": 1.49}, {"batch": 51}])
def test_a_changed_plan_neither_spends_nor_frees_its_reservation(store, reservation, change):
    """Its config.toml was edited, and a ledger begun anew."""
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1)])
    before = budget_of(store)
    for spend in (lambda one: reserve(store, [one]), lambda one: settle(store, (), one)):
        with pytest.raises(UserError, match="budget-other-plan"):
            spend(reservation(1, **change))
    assert budget_of(store) == before


def test_a_sweep_changed_before_it_began_reserves_anew(store, reservation):
    set_budget(store, 8, 1e-6)
    for steps in (100, 200, 50):
        planned = reservation(1, steps=steps)
        reserve(store, [dataclasses.replace(planned, id="sweep 1", what="sweep")])
        assert budget_of(store).spent == budget_of(store).filter.curve(planned.plan.mechanism, steps)


def test_charges_unknown_to_a_book_tell_that_it_lost_lines(store, reservation):
    set_budget(store, 8, 1e-6)
    ids = (budget_of(store).head.id,)
    known = dataclasses.replace(reservation(1), reserved_with=ids)
    reserve(store, [known])
    for path in (store.path / BUDGET_LEDGER, registry() / f"{ids[0]}.jsonl"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="budget-entry"):
        reserve(store, [dataclasses.replace(known, charged=3)])
    reserve(store, [known])  # a crash between the two: nothing was charged yet


def test_a_run_from_before_the_budget_is_counted_whole(store, reservation):
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1, 60)])
    assert budget_of(store).accounts[reservation(1).id].steps == 100


def test_unreserved_charges_are_kept_even_beyond_the_budget(store, reservation):
    set_budget(store, 2, 1e-6)
    settle(store, (), reservation(1, 5000))
    assert budget_of(store).filter.part(budget_of(store).spent) > 1
    with pytest.raises(UserError, match="Nothing fits any more.*budget-no-room"):
        reserve(store, [reservation(2, steps=1)])
    reserve(store, [reservation(1, 5000)])  # nothing is left of it


def test_a_store_with_a_budget_needs_no_reason_for_another(store):
    with pytest.raises(UserError, match="no other budget has records with the same names.*budget-distinct"):
        set_budget(store, 8, 1e-6, distinct="because")
    set_budget(store, 8, 1e-6)
    with pytest.raises(UserError, match="has its own budget already.*budget-distinct"):
        set_budget(store, 9, 1e-6, distinct="because")


def test_a_budget_may_grow_and_not_fall_below_what_is_spent(store, reservation):
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1, steps=300)])
    with pytest.raises(UserError, match=r"\(2.0, 1.00e-6\) .*budget-below-spent"):
        set_budget(store, 2, 1e-6)
    with pytest.raises(UserError, match="budget-below-spent"):
        set_budget(store, 8, 1e-30)
    orders = budget_of(store).head.orders
    assert set_budget(store, 20, 1e-5).head.orders == orders  # they were fixed before the first result
    assert set_budget(store, 7, 1e-6).filter.epsilon == 7 == budget_of(store).filter.epsilon


@pytest.mark.parametrize(
    "epsilon, delta, said",
    [
        (0, 1e-6, "epsilon must be finite and at least 0.001"),
        (float("inf"), 1e-6, "epsilon must be finite and at least 0.001"),
        (8, 0.0, "budget-delta-large"),
        (8, 2e-3, "1/N = 1/1,000.*budget-delta-large"),
        (0.002, 1e-300, "budget-too-small"),
    ],
)
def test_impossible_budgets_are_refused(store, epsilon, delta, said):
    with pytest.raises(UserError, match="budget-distinct"):
        set_budget(store, 8, 1e-6, distinct="because")
    with pytest.raises(UserError, match=said):
        set_budget(store, epsilon, delta)
    assert budgets_of(store) == []


@pytest.mark.parametrize("budget", [np.int64(3), np.float32(3), (np.float64(3), np.float32(0.5))], ids=repr)
def test_numbers_of_numpy_make_a_budget(budget):
    assert numbers_of(budget) in ((3.0, None), (3.0, 0.5))


def test_a_budget_that_no_number_holds_is_refused():
    with pytest.raises(UserError, match="own-budget"):
        numbers_of(10**400)


def test_runs_of_records_and_of_users_do_not_mix(tmp_path, reservation):
    pairs = write_store(tmp_path / "pairs", NAMES[:600], unit=lambda name: f"{int(name[7:]) // 2}")
    alone = write_store(tmp_path / "alone", [f"{name}-alone" for name in NAMES[:600]], unit=lambda name: name)
    by_user = {"unit": "user", "records": 300}
    set_budget(pairs, 8, 1e-6, "user")
    with pytest.raises(UserError, match="a person may have several: set privacy.unit = 'user'. .budget-for-users"):
        reserve(pairs, [reservation(1, records=600)])
    reserve(pairs, [reservation(1, **by_user)])
    with pytest.raises(UserError, match="each user.*budget-unit"):
        set_budget(pairs, 8, 1e-6, "record")
    set_budget(alone, 8, 1e-6, "user")
    reserve(alone, [reservation(2, records=600)])  # everybody has one record
    records = write_store(tmp_path / "records", [f"{name}-r" for name in NAMES[:600]], unit=lambda name: name[:9])
    set_budget(records, 8, 1e-6)
    with pytest.raises(UserError, match="budget-for-records"):
        reserve(records, [reservation(3, **by_user)])


def test_users_records_are_counted_only_with_known_owners(tmp_path, reservation):
    """An import done again, in which everybody has one record."""
    first = write_store(tmp_path / "first", NAMES[:600], unit=lambda name: f"{int(name[7:]) // 2}")
    again = write_store(tmp_path / "again", NAMES[:600], unit=lambda name: name)
    set_budget(first, 8, 1e-6, "user")
    for unit, count in (("user", 600), ("record", 600)):
        with pytest.raises(UserError, match="budget-user-names"):
            reserve(again, [reservation(1, unit=unit, records=count)])


def test_charges_unfit_for_the_budgets_kind_are_not_settled(tmp_path, reservation):
    pairs = write_store(tmp_path / "pairs", NAMES[:600], unit=lambda name: f"{int(name[7:]) // 2}")
    set_budget(pairs, 8, 1e-6, "user")
    with pytest.raises(UserError, match="budget-for-users"):
        settle(pairs, (), reservation(1, 60, records=600))


def test_what_no_budget_covers_wants_words_which_the_book_keeps(store):
    assert note_uncovered(store, "an audit", None) is False
    set_budget(store, 8, 1e-6)
    for nothing in (None, "", "  "):
        with pytest.raises(UserError, match="this release: an audit. Do without .*budget-not-covered"):
            note_uncovered(store, "an audit", nothing)
    assert note_uncovered(store, "an audit", "the board asked for it")
    assert [entry.why for entry in budget_of(store).uncovered] == ["an audit: the board asked for it"]
    assert budget_of(store).spent == (0.0,) * 8


def _take(store, number, plan, start, results):
    start.wait()
    try:
        reserve(store, [Reservation(f"{number:016x}", "run", f"run-{number}", Path(f"/run-{number}"), plan)])
        results.put(True)
    except UserError:
        results.put(False)


@pytest.mark.long
def test_racing_processes_do_not_both_get_the_last_budget(store):
    """Real processes, all at once; each wants 40 % or more of what there is."""
    set_budget(store, 8, 1e-6)
    budget = budget_of(store).filter
    plan = PLAN.replace(steps=int(0.4 * budget.times((0.0,) * 8, budget.curve(PLAN.mechanism, 1))))
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    racers = [context.Process(target=_take, args=(store, number, plan, start, results)) for number in range(4)]
    for racer in racers:
        racer.start()
    start.set()
    won = [results.get(timeout=at_most(120)) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(won) == 2 == len(budget_of(store).accounts)
    assert budget.admits(budget_of(store).spent)
    assert replicas.read(store.path / BUDGET_LEDGER) == replicas.read(registry() / f"{budget_of(store).head.id}.jsonl")


def _killed(store, reservation, moment):
    done, written = [], replicas.append_line

    def append(path, line, end):
        if len(done) == moment // 2 and not moment % 2:  # in the middle of writing it
            with open(path, "ab") as file:
                file.write(b'{"id": "0')
                file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        end = written(path, line, end)
        done.append(path)
        if len(done) == moment // 2 + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return end

    replicas.append_line = append
    reserve(store, [reservation])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("moment", range(4))
def test_a_process_killed_while_reserving_frees_nothing(store, reservation, moment):
    """Killed in the write to the first copy, behind it, in the write to the second one, and behind that."""
    set_budget(store, 8, 1e-6)
    reserve(store, [reservation(1)])
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(store, reservation(2), moment))
    process.start()
    process.join(at_most(60))
    assert process.exitcode == -signal.SIGKILL
    reserved = moment > 0
    assert len(budget_of(store).accounts) == 1 + reserved
    reserve(store, [reservation(2), reservation(3)])  # the run goes on; and the lock does not outlive who held it
    assert len(budget_of(store).accounts) == 3 and len(budget_of(store).entries) == 4
    assert len(replicas.read(store.path / BUDGET_LEDGER).entries) == 4


def test_a_store_that_cannot_be_written_begins_no_run(store, reservation, monkeypatch):
    set_budget(store, 8, 1e-6)
    path = store.path / BUDGET_LEDGER
    real = replicas.append_line

    def fail(file, line, end):
        if file == path:
            raise OSError(30, "Read-only file system")
        return real(file, line, end)

    monkeypatch.setattr(replicas, "append_line", fail)
    with pytest.raises(UserError, match="Read-only file system.*replica-not-writable"):
        reserve(store, [reservation(1)])
    monkeypatch.undo()


@pytest.mark.parametrize("command", [("set", "--epsilon", 8, "--delta", 1e-6), ("settle",)])
def test_on_a_full_disk_each_commands_advice_works(command, store, reservation, monkeypatch, dpfed):
    if command[0] == "settle":
        set_budget(store, 8, 1e-6)
        monkeypatch.setattr("dpfed.runs.budgeting.settle_run", lambda path: reserve(store, [reservation(1)]))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(replicas, "append_line", full)
        patch.setattr(replicas, "write_atomically", full)
        code, _, error = dpfed("budget", command[0], store.path, *command[1:])
    assert code == 2 and "No space left on device" in error and "repeat the command" in error
    assert "the run does not begin" not in error  # there is no run
    code, _, error = dpfed("budget", command[0], store.path, *command[1:])
    assert code == 0, error


def test_a_sweeps_reservation_goes_to_the_run_in_its_place(store, reservation):
    set_budget(store, 8, 1e-6)
    planned = [dataclasses.replace(reservation(number), id=f"sweep {number}", what="sweep") for number in (1, 2)]
    reserve(store, planned)
    both = budget_of(store).spent
    reserve(store, [reservation(1)])
    assert budget_of(store).spent == both and sorted(one.what for one in budget_of(store).accounts.values()) == ["run", "sweep"]
    reserve(store, planned)  # the sweep goes on
    assert budget_of(store).spent == both == added([budget_of(store).filter.curve(PLAN.mechanism, 100)] * 2, 8)
