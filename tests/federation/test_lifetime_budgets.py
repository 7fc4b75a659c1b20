"""Federations over one site's records are composed by the store's lifetime budget, whatever folders they use."""

import shutil

import pytest

from dpfed.budgets.registry import budgets_of
from dpfed.budgets.spending import set_budget
from dpfed.config import parse_config
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.budgeting import settle_site
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.site import serving
from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.serving import load_site
from dpfed.federation.site.worker import SiteWorker
from dpfed.privacy.ledger import Ledger, Release
from dpfed.protocol.terms import Terms
from dpfed.runs.pretraining import pretrain


@pytest.fixture
def store(shapes, tmp_path):
    return RecordStore.open(shutil.copytree(shapes.path, tmp_path / "store"))


@pytest.fixture
def config(tiny, store):
    tiny["data"]["path"] = str(store.path)
    tiny["evaluation"] = {"split": "none"}
    tiny["privacy"] |= {"epsilon": 2.0, "delta": 1e-5, "accountant": "rdp"}
    return tiny


@pytest.fixture
def join(config, store, tmp_path):
    """Makes a federation of two sites, of which the first has the store, and has it join."""

    def make(number, **privacy):
        sites = [SiteFolder.create(tmp_path / f"{name}-{number}", name, store.path) for name in ("ours", "theirs")]
        config["privacy"] |= privacy
        cards = [site.card for site in sites]
        folder = CoordinatorFolder.create(tmp_path / f"federation-{number}", parse_config(config), cards)
        sites[0].join(Terms.load(folder.terms))
        return sites[0]

    return make


def budget_of(store):
    (entry,) = budgets_of(store)
    return entry.budget


@pytest.mark.long
def test_federations_and_a_run_over_a_store_share_its_budget(store, join, config, tmp_path):
    budget = set_budget(store, 3, 1e-5)
    first = join(1)
    plan = first.terms().privacy_plan
    one = budget.filter.curve(plan.mechanism, plan.steps)
    assert budget_of(store).spent == one
    number = 1
    with pytest.raises(UserError, match="has no room"):
        for number in range(2, 9):
            join(number)
    assert number > 2 and len(budget_of(store).accounts) == number - 1
    late = SiteFolder.open(tmp_path / f"ours-{number}")
    assert not late.ledger.exists()
    with pytest.raises(UserError, match="site-not-joined"):
        late.terms()
    with pytest.raises(UserError, match="has no room"):
        pretrain(parse_config(config), tmp_path / "run")
    settle_site(first)  # its coordinator never came
    assert len([account for account in budget_of(store).accounts.values() if not account.settled]) == number - 2
    late.join(Terms.load(tmp_path / f"federation-{number}" / "terms.json"))


def test_a_site_served_again_reserves_no_more_and_no_copy_may(store, join, tmp_path):
    set_budget(store, 10, 1e-5)
    site = join(1)
    spent = budget_of(store).spent
    for _ in range(2):
        load_site(site, print)
    assert budget_of(store).spent == spent and len(budget_of(store).entries) == 2
    copy = SiteFolder.open(shutil.copytree(site.path, tmp_path / "copy"))
    with pytest.raises(UserError, match="is a copy of"):
        load_site(copy, print)


def test_a_site_that_joined_before_the_budget_is_counted_later(store, join):
    site = join(1)
    Ledger.open(site.ledger).charge(Release(0, "digest"))
    budget = set_budget(store, 10, 1e-5)
    load_site(site, print)
    plan = site.terms().privacy_plan
    assert budget_of(store).spent == budget.filter.curve(plan.mechanism, plan.steps)


def test_a_site_stopped_after_the_last_step_gives_the_rest_back(store, join, monkeypatch):
    budget, site = set_budget(store, 10, 1e-5), join(1)
    plan = site.terms().privacy_plan
    monkeypatch.setattr(serving, "serve", lambda *_: None)
    for last in (plan.steps - 2, plan.steps - 1):  # it missed the others
        Ledger.open(site.ledger).charge(Release(last, "digest"))
        serving.serve_site(site, site.socket, print)
        taken = plan.steps if last < plan.steps - 1 else 2
        assert budget_of(store).spent == budget.filter.curve(plan.mechanism, taken)


def test_a_site_that_is_still_served_settles_after_the_last_step(store, join, monkeypatch, dpfed):
    budget, site, said = set_budget(store, 10, 1e-5), join(1), []
    plan = site.terms().privacy_plan

    def serve(socket, handle, stop, group, longest, between):
        between()
        (account,) = budget_of(store).accounts.values()
        assert not account.settled
        code, _, error = dpfed("budget", "settle", site.path)  # it may still be asked
        assert code == 2 and "budget-site-served" in error
        Ledger.open(site.ledger).charge(Release(plan.steps - 1, "digest"))
        monkeypatch.setattr(SiteWorker, "is_over", True)
        for _ in range(2):
            between()
        assert budget_of(store).spent == budget.filter.curve(plan.mechanism, 1)
        assert all(account.settled for account in budget_of(store).accounts.values())
        code, out, error = dpfed("budget", "settle", site.path)  # while it is served, too
        assert code == 0, error
        assert "reserved" not in dpfed("budget", "show", store.path)[1]

    monkeypatch.setattr(serving, "serve", serve)
    serving.serve_site(site, site.socket, said.append)
    assert sum("settled" in line for line in said) == 1


def test_a_settled_site_is_served_again_only_where_there_is_room(store, join):
    budget = set_budget(store, 3, 1e-5)
    site = join(1)
    plan = site.terms().privacy_plan
    Ledger.open(site.ledger).charge(Release(0, "digest"))
    settle_site(site)
    assert budget_of(store).spent == budget.filter.curve(plan.mechanism, 1)
    load_site(site, print)
    assert budget_of(store).spent == budget.filter.curve(plan.mechanism, plan.steps)
    settle_site(site)
    with pytest.raises(UserError, match="has no room"):
        for number in range(2, 9):
            join(number)
    with pytest.raises(UserError, match="has no room"):
        load_site(site, print)
