"""The terms bind all that the guarantee depends on, and nobody signs up to what contradicts itself or spends too much."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from dpfed.config import parse_config, sections
from dpfed.discovery import Announced
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.site.folder import SiteFolder, SiteSettings
from dpfed.federation.site.serving import load_site
from dpfed.privacy import plan_parts
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up
from dpfed.protocol import terms as terms_room
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.journal import Journal
from dpfed.protocol.statement import facts_of_federation, statement
from dpfed.protocol.terms import Terms
from dpfed.protocol.trust import Trust
from dpfed.report.card import privacy_card
from dpfed.runs.build import build
from dpfed.runs.outcome import card_facts
from tests.report.test_card import FACTS


@pytest.fixture
def tiny(tiny):
    tiny["privacy"]["accountant"] = "rdp"  # fast
    return tiny


@pytest.fixture
def cards():
    keys = [Identity(bytes([number]) * 32) for number in range(3)]
    return [
        SiteCard(name=f"site-{n}", records=100 * (n + 1), signing_key=key.signing_key, exchange_key=key.exchange_key)
        for n, key in enumerate(keys)
    ]


@pytest.fixture
def terms(tiny_config, cards):
    return Terms.agree(tiny_config, cards, Identity(b"c" * 32).signing_key)


def test_terms_survive_their_file(terms, tmp_path):
    terms.save(tmp_path / "terms.json")
    read = Terms.load(tmp_path / "terms.json")
    assert (read, read.fingerprint, read.privacy_plan) == (terms, terms.fingerprint, terms.privacy_plan)


def test_a_site_refuses_terms_whose_loss_is_another_packages(terms, tmp_path, monkeypatch):
    terms.save(tmp_path / "terms.json")
    foreign = Announced("infonce", "mine", "1.2", "dpfed.objectives.infonce", "OBJECTIVE")
    monkeypatch.setitem(terms_room.FOREIGN, "infonce", foreign)
    with pytest.raises(UserError, match=r"'infonce' of mine 1\.2 .*set one of .*'siglip'.*terms-foreign-loss"):
        Terms.load(tmp_path / "terms.json")


@pytest.mark.parametrize("place", ["config", "plan"])
def test_a_method_of_another_package_is_not_even_looked_at(terms, tmp_path, monkeypatch, place):
    """Its proof would not be read, but its code would be run."""
    tree = json.loads(terms.text)
    if place == "config":
        tree["config"]["bounding"]["method"] = "half"
    else:
        tree["plan"]["method_name"] = "half"
    monkeypatch.setitem(terms_room.FOREIGN_METHODS, "half", Announced("half", "mine", "1.2", "antigravity", "METHOD"))
    monkeypatch.setattr(Announced, "load", lambda self: pytest.fail("it was imported"))
    for room in (plan_parts, sections):
        monkeypatch.setattr(room, "METHODS", (*room.METHODS, "half"))
    with pytest.raises(UserError, match=r"'half' of mine 1\.2 .*terms-foreign-method"):
        Terms.load(written(tree, tmp_path))
    with pytest.raises(UserError, match="terms-foreign-method"):
        Terms.model_validate(tree)  # as those of a kit are read


@pytest.mark.parametrize(
    ("section", "key"), [("objective", "name"), ("model", "image"), ("views", "transform"), ("data", "source")]
)
def test_terms_name_no_part_of_python_and_nobody_imports_it(terms, tmp_path, monkeypatch, section, key):
    """Whoever could name code in the terms could run it at every site."""
    tree = json.loads(terms.text)
    tree["config"][section] = {**tree["config"].get(section, {}), key: "subprocess:run"}
    for idle in ("width", "crop_scale", "jitter", "brightness", "temperature", "flip", "blur", "grayscale"):
        tree["config"][section].pop(idle, None)
    (tmp_path / "terms.json").write_text(json.dumps(tree))
    monkeypatch.setattr("dpfed.discovery.named", lambda *given: pytest.fail("it was looked for"))
    with pytest.raises(UserError, match=r"\[terms-own-(parts|records)\]"):
        Terms.load(tmp_path / "terms.json")


def test_terms_hold_no_path(terms, tiny):
    assert tiny["data"]["path"] not in terms.text
    assert "/" not in json.dumps(terms.config)


def test_the_plan_is_for_the_records_of_all_sites(terms):
    assert terms.privacy_plan.sampling.records == 600
    assert [site.groups for site in terms.sites] == terms.privacy_plan.apportioned([100, 200, 300])


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["plan"].update(noise_multiplier=0.3),
        lambda tree: tree["plan"].update(records=6000),
        lambda tree: tree["plan"].update(clip_norm=2.0),
        lambda tree: tree["plan"].update(unknown=1),
        lambda tree: tree["config"]["privacy"].update(batch=30),
        lambda tree: tree["config"]["bounding"].update(clip_norm=3.0),
        lambda tree: tree["sites"][0].update(groups=9),
        lambda tree: tree["sites"][0].update(records=9),
        lambda tree: tree["sites"][0].update(name="site-1"),
        lambda tree: tree["sites"][0].update(signing_key=tree["sites"][1]["signing_key"]),
        lambda tree: tree["sites"][0].update(exchange_key="zz"),
        lambda tree: tree["sites"].pop(),
        lambda tree: tree.update(trust="none"),
        lambda tree: tree.update(trust="secure", drops=2),
        lambda tree: tree.update(more=1),
        lambda tree: tree.pop("coordinator"),
    ],
)
def test_terms_that_contradict_themselves_are_refused(terms, tmp_path, change):
    tree = json.loads(terms.text)
    change(tree)
    with pytest.raises(UserError):
        Terms.load(written(tree, tmp_path))


def test_a_site_without_units_is_not_taken_for_a_wrong_sum(terms, tmp_path):
    tree = json.loads(terms.text)
    tree["sites"][0]["records"] = 9
    with pytest.raises(UserError, match="numbers of records do not add up to the plan's N.*terms-contradiction"):
        Terms.load(written(tree, tmp_path))
    tree["plan"]["unit"] = tree["config"]["privacy"]["unit"] = "user"
    with pytest.raises(UserError, match="a site has no units.*terms-contradiction"):
        Terms.load(written(tree, tmp_path))


@pytest.mark.parametrize("unit", ["record", "user"])
def test_groups_are_shared_out_by_what_the_plan_counts(tiny_config, cards, tmp_path, unit):
    config = tiny_config.model_copy(update={"privacy": tiny_config.privacy.model_copy(update={"unit": unit})})
    cards = [card.model_copy(update={"units": card.records}) for card in cards]
    tree = json.loads(Terms.agree(config, cards, Identity(b"c" * 32).signing_key).text)
    tree["sites"][0]["groups"] += 1
    with pytest.raises(UserError, match=f"not shared out by {'unit' if unit == 'user' else 'record'}s.*terms-contradiction"):
        Terms.load(written(tree, tmp_path))


def written(tree, tmp_path):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(tree))
    return path


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"format": 2}'])
def test_what_is_no_file_of_terms_is_refused(tmp_path, text):
    (tmp_path / "terms.json").write_text(text)
    with pytest.raises(UserError):
        Terms.load(tmp_path / "terms.json")


@pytest.mark.long
def test_every_change_of_the_terms_shows_in_their_fingerprint(tiny_config, cards, terms):
    key = Identity(b"c" * 32).signing_key
    others = [
        Terms.agree(tiny_config, cards, Identity(b"d" * 32).signing_key),
        Terms.agree(tiny_config, cards[::-1], key),
        Terms.agree(tiny_config, cards[:2], key),
        Terms.agree(tiny_config, cards, key, trust="secure"),
        Terms.agree(tiny_config, cards, key, drops=1),
        Terms.agree(tiny_config, cards, key, colluders=0),
        Terms.agree(tiny_config, cards, key, deadline=7.0),
        Terms.agree(tiny_config, cards, key, broadcast="bf16"),
        Terms.agree(tiny_config.model_copy(update={"name": "other"}), cards, key),
    ]
    assert len({terms.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1


@pytest.mark.parametrize(
    ("mode", "sites", "drops", "colluders"),
    [("secure", 3, 2, 0), ("secure", 4, 2, 0), ("secure", 3, 1, 2), ("distributed", 3, 2, 1), ("central", 3, -1, 0)],
)
def test_what_cannot_be_tolerated_is_refused(mode, sites, drops, colluders):
    with pytest.raises(UserError):
        Trust(mode, sites, drops, colluders)


@pytest.mark.parametrize("mode", ["distributed", "secure"])
@pytest.mark.parametrize(("sites", "drops", "colluders"), [(2, 0, 1), (3, 0, 0), (5, 1, 1), (5, 2, 2), (9, 3, 2)])
def test_what_honest_sites_add_is_never_less_than_the_plans(terms, mode, sites, drops, colluders):
    trust, plan = Trust(mode, sites, drops, colluders), terms.privacy_plan
    for arrived in range(trust.least, sites + 1):
        assert trust.carried_std(plan, arrived - colluders) >= plan.noise_std * (1 - 1e-12)
        shares = [trust.share_std(plan) ** 2] * arrived  # what is stated is what came, and no more
        assert trust.carried_std(plan, arrived) == pytest.approx(math.sqrt(sum(shares)), rel=1e-12)
    assert ("does not hold against a site" in str(trust)) == (colluders == 0)  # each site knows its own share


@pytest.fixture
def parties(tiny, shapes, tmp_path):
    """Two sites and a coordinator, on disk."""
    sites = [
        SiteFolder.create(tmp_path / f"site-{n}", f"site-{n}", shapes.path, declared=600 + n, budget=8.5) for n in range(2)
    ]

    def agree(name="coordinator", **changes):
        privacy = tiny["privacy"] | changes
        config = parse_config(tiny | {"privacy": {name: value for name, value in privacy.items() if value is not None}})
        return CoordinatorFolder.create(tmp_path / name, config, [site.card for site in sites])

    return sites, agree


@pytest.mark.long
def test_a_site_joins_and_is_served(parties):
    sites, agree = parties
    terms = Terms.load(agree().terms)
    for site in sites:
        site.join(terms)
    assert load_site(sites[1], print)._number == 1
    assert Ledger.open(sites[0].ledger).plan == terms.privacy_plan
    assert {path.stat().st_mode & 0o77 for path in (sites[0].path, *sites[0].path.glob("*.key"))} == {0}


@pytest.mark.long
@pytest.mark.parametrize(("changes", "why"), [({"epsilon": 9.0}, "allows 8.5.*join-budget"), ({"seed": 1}, "join-seed")])
def test_terms_that_overspend_or_promise_nothing_are_not_joined(parties, changes, why, monkeypatch):
    (site, _), agree = parties
    monkeypatch.setattr("dpfed.federation.coordinator.folder.refuse_proposal", lambda *_: None)  # of another coordinator
    with pytest.raises(UserError, match=why):
        site.join(Terms.load(agree(**changes).terms))
    assert not site.ledger.exists()


def test_terms_without_privacy_are_not_joined(parties, tiny, tmp_path):
    (site, other), _ = parties
    privacy = {name: value for name, value in tiny["privacy"].items() if name in ("batch", "steps")}
    config = parse_config(tiny | {"privacy": privacy, "bounding": tiny["bounding"] | {"method": "none"}})
    folder = CoordinatorFolder.create(tmp_path / "coordinator", config, [site.card, other.card])
    with pytest.raises(UserError, match="join-no-privacy"):
        site.join(Terms.load(folder.terms))
    assert not site.ledger.exists()


def test_a_budget_counts_every_step_to_the_last_digit(parties):
    (site, _), agree = parties
    terms, settings = Terms.load(agree().terms), site.path / "site.toml"
    given, spent = settings.read_text(), terms.privacy_plan.epsilon()
    settings.write_text(given.replace("8.5", repr(spent * (1 - 1e-9))))
    with pytest.raises(UserError, match="join-budget"):
        site.join(terms)
    settings.write_text(given.replace("8.5", repr(spent)))
    site.join(terms)


@pytest.mark.long
def test_a_large_delta_is_not_joined_whatever_the_epsilon(parties, shapes, tmp_path):
    (site, _), agree = parties
    strict = SiteFolder.create(tmp_path / "strict", "strict", shapes.path, budget=8.5, delta=1e-6)
    sites = [*parties[0], strict]
    terms = Terms.load(agree().terms)
    with pytest.raises(UserError, match="more than 1/N"):
        agree("loose", delta=0.5)
    above = 1.01 / terms.privacy_plan.sampling.records
    for delta, said in ((0.5, "0.5"), (above, "8.41e-4")):  # a coordinator that does not check
        loose = terms.model_dump() | {"plan": terms.plan | {"delta": delta}}
        loose["config"]["privacy"]["delta"] = delta
        with pytest.raises(UserError, match="more than 1/N"):
            Terms._checked(loose)
        with pytest.MonkeyPatch.context() as patch:  # the site refuses for itself
            patch.setattr(PrivacyPlan, "_refuse_large_delta", lambda _: None)
            worse = Terms._checked(loose)
            assert dict(statement(worse))["warning"].startswith(f"Do not rely on this promise: its delta of {said}")
            with pytest.raises(UserError, match=f"delta {said}.*join-delta"):
                site.join(worse)
    assert not site.ledger.exists()
    config = Terms.agree(terms.run_config(), [SiteCard.load(one.card) for one in sites], terms.coordinator)
    with pytest.raises(UserError, match=r"1.00e-6 at most.*join-delta"):
        strict.join(config)
    site.join(config)


@pytest.mark.parametrize("declared", [599, 1, 0, -5, 10**20])
def test_too_few_or_too_many_records_cannot_be_declared(shapes, tmp_path, declared):
    refusal = "600 training records.*site-declared-few" if declared < 600 else "--declared must lie in 1..1,000,000,000,000"
    with pytest.raises(UserError, match=refusal):
        SiteFolder.create(tmp_path / "site", "site", shapes.path, declared=declared)
    assert not (tmp_path / "site").exists()


def test_a_store_that_has_grown_beyond_the_card_is_not_served(parties, monkeypatch):
    sites, agree = parties
    sites[0].join(Terms.load(agree().terms))
    monkeypatch.setattr("dpfed.data.store.records.RecordStore.training_records", 601)
    with pytest.raises(UserError, match="card.json: records = 600 is less than the 601.*site-declared-few"):
        load_site(sites[0], print)


def test_a_stranger_does_not_join(parties, shapes, tmp_path):
    _, agree = parties
    stranger = SiteFolder.create(tmp_path / "stranger", "stranger", shapes.path)
    with pytest.raises(UserError, match="terms-other-key"):
        stranger.join(Terms.load(agree().terms))


def test_folders_are_never_overwritten(parties, shapes, tmp_path, monkeypatch):
    (site, _), agree = parties
    agree()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="member-folder-exists"):
        SiteFolder.create(site.path, "again", shapes.path)
    monkeypatch.setattr("dpfed.runs.records.records_of", lambda *_, **__: pytest.fail("records were opened"))
    with pytest.raises(UserError, match="member-folder-exists"):
        agree()
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_the_statement_says_what_one_message_gives_away(tiny_config, cards):
    key = Identity(b"c" * 32).signing_key
    texts = {
        mode: dict(statement(Terms.agree(tiny_config, cards, key, trust=mode)))
        for mode in ("central", "distributed", "secure", "local")
    }
    assert {mode for mode, said in texts.items() if "one message" in said} == {"distributed", "local"}
    of_message = float(texts["distributed"]["one message"].split("epsilon ")[1].split()[0])
    assert of_message > 8.0  # a share of the noise protects less than all of it


def spent(plan, sigma, steps) -> str:
    """Epsilon as it is printed, by an accountant of its own."""
    rate = plan.sampling.batch / plan.sampling.records
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    accountant = RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(step, steps))
    return round_up(float(accountant.get_epsilon(plan.promise.delta)))


@pytest.mark.parametrize(("mode", "shares"), [("distributed", 2), ("local", 1)])  # three sites, one of which may talk
def test_every_stated_epsilon_is_that_of_its_noise_and_steps(tiny_config, cards, tmp_path, mode, shares):
    terms = Terms.agree(tiny_config, cards, Identity(b"c" * 32).signing_key, trust=mode)
    plan, journal = terms.privacy_plan, Journal(tmp_path / "journal.jsonl")
    sigma, of_message = plan.noise.multiplier, spent(plan, plan.noise.multiplier / math.sqrt(shares), plan.steps)
    assert len({spent(plan, sigma, steps) for steps in range(1, plan.steps + 1)}) == plan.steps  # one step less would show
    said = dict(statement(terms))
    assert said["promise"].startswith(f"({spent(plan, sigma, plan.steps)}, {round_up(plan.promise.delta)})-")
    assert f"epsilon {of_message} at the same delta" in said["one message"]
    for step in range(4):
        journal.write("opened", step)
        journal.write("collected", step, arrived=["site-0", "site-2"] if step else ["site-0"])
    run = SimpleNamespace(journal=tmp_path / "journal.jsonl", simulation=tmp_path / "nowhere")
    facts = facts_of_federation(FACTS, run.journal, run.simulation.is_file(), terms)
    for line, steps in zip(facts.sites, (4, 0, 3), strict=True):
        stated = f"its sums are in {steps} steps, which cost its records epsilon {spent(plan, sigma, steps) if steps else 0}"
        assert line.endswith(stated)
    assert any(f"epsilon {of_message} at the same delta" in mark.text for mark in facts.marks)


@pytest.mark.parametrize(
    "change", [{"records": 299}, {"name": "other"}, {"exchange_key": Identity(b"m" * 32).exchange_key}, {"units": 300}]
)
def test_terms_that_contradict_a_sites_card_are_not_joined(parties, tiny, change):
    """Whoever could put another exchange key there could play the other sites."""
    sites, _ = parties
    cards = [SiteCard.model_validate_json(site.card.read_text()) for site in sites]
    cards[0] = cards[0].model_copy(update=change)
    terms = Terms.agree(parse_config(tiny), cards, Identity(b"c" * 32).signing_key)
    with pytest.raises(UserError, match="join-card"):
        sites[0].join(terms)


def test_a_key_with_which_everybody_agrees_on_zeros_is_refused(tiny_config, cards):
    cards[1] = cards[1].model_copy(update={"exchange_key": "00" * 32})
    with pytest.raises(UserError, match="exchange key is not valid.*terms-contradiction"):
        Terms.agree(tiny_config, cards, Identity(b"c" * 32).signing_key)


def test_a_ledger_that_was_charged_is_never_begun_anew(parties):
    (site, _), agree = parties
    terms = Terms.load(agree().terms)
    site.join(terms)
    Ledger.open(site.ledger).charge(Release(0, "x"))
    (site.path / "terms.json").unlink()
    with pytest.raises(UserError, match="join-charged"):
        site.join(terms)
    assert Ledger.open(site.ledger).charged == 1


@pytest.mark.long
def test_a_site_with_another_plans_ledger_is_not_served(parties):
    (site, _), agree = parties
    site.join(Terms.load(agree().terms))
    site.ledger.unlink()
    Ledger.create(site.ledger, Terms.load(agree("other", epsilon=4.0).terms).privacy_plan)
    with pytest.raises(UserError, match="site-ledger"):
        load_site(site, print)


def test_the_card_of_a_federation_speaks_of_the_sites_units(tiny, cards, shapes):
    """The coordinator's own records name none."""
    with_units = [card.model_copy(update={"units": card.records // 2, "unit_name": "patient"}) for card in cards]
    key = Identity(b"c" * 32).signing_key
    for unit, said in (
        ("record", "The records name a patient"),
        ("user", "all records at one site that share a value of 'patient'"),
    ):
        tiny["privacy"]["unit"] = unit
        config = parse_config(tiny)
        terms = Terms.agree(config, with_units, key)
        assert terms.privacy_plan.sampling.records == (600 if unit == "record" else 300)
        parts = build(config.model_copy(update={"privacy": config.privacy.model_copy(update={"unit": "record"})}), terms=terms)
        ledger = Ledger.create(shapes.path.parent / f"{unit}.jsonl", terms.privacy_plan)
        assert said in privacy_card(card_facts(parts, ledger))


# ---- what a hostile coordinator, or a hostile site, may have written


@pytest.mark.parametrize("name", [".", "..", "-rf", ".hidden", "a/b", "a\x1b[31m", "a\n", "a\u202eb", "", "x" * 65])
def test_names_that_are_paths_options_or_hidden_text_are_refused(name):
    key = Identity(b"n" * 32)
    with pytest.raises(ValueError, match="name"):
        SiteCard(name=name, records=1, signing_key=key.signing_key, exchange_key=key.exchange_key)


def test_hidden_text_in_terms_is_refused_wherever_it_is(terms, tmp_path):
    """The terms are printed for an operator who decides by them."""
    for change in (
        lambda tree: tree["config"].update(name="\x1b[2J(0.1, 1e-9)-differential privacy"),
        lambda tree: tree["config"].update({"\u202e": 1}),
        lambda tree: tree["sites"][0].update(unit_name="a\rb"),
    ):
        change(tree := json.loads(terms.text))
        with pytest.raises(UserError, match="terms-hidden") as raised:
            Terms.load(written(tree, tmp_path))
        assert str(raised.value).isprintable()


@pytest.mark.parametrize(("sites", "drops", "colluders"), [(5, 2, 1), (6, 2, 2), (7, 3, 1), (100, 49, 2)])
def test_secure_terms_that_let_a_server_narrow_sums_are_refused(sites, drops, colluders):
    with pytest.raises(UserError, match=rf"bear at most {(sites - colluders - 1) // 2} missing .*trust-server-lies"):
        Trust("secure", sites, drops, colluders)
    Trust("secure", sites, (sites - colluders - 1) // 2, colluders)
    Trust("distributed", sites, drops, colluders)


@pytest.mark.parametrize(("sites", "drops", "colluders"), [(3, 1, 1), (5, 2, 2), (2, 0, 1)])
def test_secure_terms_with_all_noise_from_each_need_no_majority(sites, drops, colluders):
    assert Trust("secure", sites, drops, colluders).honest == 1


def test_a_site_joins_no_plan_whose_cost_nobody_can_say(monkeypatch):
    folder = SiteFolder(Path("unused"))
    monkeypatch.setattr(SiteFolder, "settings", lambda self: SiteSettings(name="a", store="s", budget=8.5))
    plan = PrivacyPlan.of(1000, 100, 4, 1.0, 5, 1.0, 1e-5)
    monkeypatch.setattr(PrivacyPlan, "epsilon", lambda self: math.nan)
    with pytest.raises(UserError, match="allows 8.5.*join-budget"):
        folder.refuse_cost(plan)
