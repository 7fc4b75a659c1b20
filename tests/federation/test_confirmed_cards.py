"""Sites make sure of each other: a coordinator that invents members, or changes a card, is found out or at least counted."""

import json

import pytest
from typer.testing import CliRunner

from dpfed.cli import app
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.site.folder import SiteFolder
from dpfed.privacy.promise import round_up
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.statement import confirmation, epsilon_if_known, statement
from dpfed.protocol.terms import Terms
from dpfed.protocol.trust import Trust


@pytest.fixture
def tiny(tiny):
    tiny["privacy"]["accountant"] = "rdp"  # fast
    return tiny


@pytest.fixture
def sites(shapes, tmp_path):
    return [SiteFolder.create(tmp_path / name, name, shapes.path) for name in ("north", "south", "west")]


@pytest.fixture
def agree(tiny, sites, tmp_path):
    def make(cards=None, **options) -> Terms:
        cards = [site.card for site in sites] if cards is None else cards
        name = f"coordinator-{len(list(tmp_path.iterdir()))}"
        return Terms.load(CoordinatorFolder.create(tmp_path / name, parse_config(tiny), cards, **options).terms)

    return make


def invented(tmp_path, name: str) -> object:
    """A card that the coordinator made for a site of its own."""
    key = Identity.fresh()
    card = SiteCard(name=name, records=600, signing_key=key.signing_key, exchange_key=key.exchange_key)
    (path := tmp_path / f"{name}.json").write_text(card.model_dump_json(exclude_none=True))
    return path


def test_a_fingerprint_binds_all_that_a_card_says(sites):
    card = sites[0].own_card()
    changes = {"name": "x", "records": 601, "units": 5, "unit_name": "eye", "signing_key": "0" * 64, "exchange_key": "1" * 64}
    others = [card.model_copy(update=dict([change])) for change in changes.items()] + [site.own_card() for site in sites[1:]]
    assert len({card.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)
    assert SiteCard.load(sites[0].card).fingerprint == card.fingerprint


def test_terms_show_the_fingerprints_of_the_cards_that_went_in(sites, agree):
    terms = agree()
    shown = [value.split("card ")[1] for name, value in statement(terms) if name == "site"]
    assert shown == [site.own_card().fingerprint for site in sites]
    assert "confirmed" not in dict(statement(terms))


def test_what_is_no_card_of_another_site_is_not_confirmed(sites):
    for wrong, said in (("abc", "card-fingerprint"), (sites[0].own_card().fingerprint, "card-own")):
        with pytest.raises(UserError, match=said):
            sites[0].confirm([wrong])
    assert sites[0].confirmed() == []


def test_a_card_that_the_coordinator_replaced_is_found_out(sites, agree, tmp_path):
    sites[0].confirm([sites[1].own_card().fingerprint])
    replaced = agree([sites[0].card, invented(tmp_path, "south"), sites[2].card])
    with pytest.raises(UserError, match=r"replaced its card\. If it is wrong, remove .*confirmed.json.*card-stranger"):
        sites[0].join(replaced)
    assert not sites[0].ledger.exists()
    sites[0].join(agree())


def test_after_joining_only_members_can_be_confirmed(sites, agree, tmp_path):
    sites[0].join(agree())
    with pytest.raises(
        UserError, match=r"replaced its card\. \[card-stranger\]"
    ):  # nothing was written, so nothing is to be removed
        sites[0].confirm([SiteCard.load(invented(tmp_path, "east")).fingerprint])
    sites[0].confirm([sites[1].own_card().fingerprint.upper().replace(" ", "-")])
    assert sites[0].confirmed() == [sites[1].own_card().fingerprint]


def test_the_promise_without_nine_invented_members_is_told(sites, agree, tmp_path):
    """The coordinator knows all shares of the noise but one: what is left is this site's own."""
    cards = [sites[0].card, *(invented(tmp_path, f"sham-{number}") for number in range(9))]
    terms = agree(cards, trust="secure", drops=0, colluders=1)
    sites[0].join(terms)
    said = confirmation(terms, 0, sites[0].confirmed())
    assert terms.trust_model.noise_if_honest(1) == pytest.approx(1 / 9)
    assert said.startswith("1 of 10 members: this site. If only these are honest, and the coordinator colludes with the others")
    assert float(said.split("then epsilon ")[1].split(" ")[0]) > 2 * terms.privacy_plan.epsilon()
    assert f"holds instead of {round_up(terms.privacy_plan.epsilon())}" in said


def test_the_statement_says_when_the_promise_holds(sites, agree):
    terms = agree(trust="secure", drops=0, colluders=1)
    prints = [site.own_card().fingerprint for site in sites]
    assert confirmation(terms, 0, prints[1:]) == (
        "3 of 3 members: this site, south, west. The promise holds if these are honest"
    )
    one_unknown = confirmation(terms, 0, prints[2:])  # who may collude
    assert one_unknown.endswith("this site, west. The promise holds if these are honest, whoever the others are")
    assert "The promise holds" not in confirmation(terms, 0, [])
    for trust in ("central", "local"):
        assert "does not depend on who the other members are" in confirmation(agree(trust=trust), 0, [])


@pytest.mark.parametrize("sites_, drops, colluders", [(3, 0, 1), (3, 1, 0), (10, 0, 1), (10, 3, 1), (10, 2, 3), (200, 20, 1)])
def test_honest_sites_noise_in_the_narrowest_sum_is_what_is_left(sites_, drops, colluders):
    trust = Trust("secure", sites_, drops, colluders)
    for honest in range(1, sites_ + 1):
        part, others = trust.noise_if_honest(honest), sites_ - honest
        least = 1  # its own share is added in any case
        if sites_ > 2 * drops + others and (others + drops < trust.links or trust.links == sites_ - 1):
            least = max(1, sites_ - drops - others)  # of any sum that they agree to reveal
        if others <= colluders:
            assert part == 1 and least / trust.honest >= 1
        else:
            assert part == pytest.approx(least / trust.honest) and part < 1
    assert Trust("distributed", sites_, drops, colluders).noise_if_honest(1) == pytest.approx(
        1 if sites_ - 1 <= colluders else 1 / trust.honest
    )


def test_the_commands(sites, agree):
    def run(*arguments):
        result = CliRunner().invoke(app, ["site", *map(str, arguments)])
        return result.exit_code, " ".join(result.output.split())

    south, west = (site.own_card().fingerprint for site in sites[1:])
    assert run("confirm", sites[0].path, south)[1].endswith("1 card of other sites is confirmed.")
    sites[0].join(agree(trust="secure", colluders=1), lambda _: True)
    code, said = run("confirm", sites[0].path, west)
    assert code == 0 and "3 of 3 members: this site, south, west" in said
    assert json.loads((sites[0].path / "confirmed.json").read_text()) == sorted([south, west])


def test_a_worst_case_over_budget_waits_for_confirmed_cards(shapes, agree, tiny, tmp_path):
    """The coordinator's plan fits the budget; what holds if the unknown members lie does not."""
    made = [SiteFolder.create(tmp_path / f"own-{name}", name, shapes.path, budget=8.0) for name in ("north", "south", "west")]
    terms = agree([site.card for site in made], trust="distributed", drops=0, colluders=1)
    assert terms.privacy_plan.epsilon() <= 8.0 < epsilon_if_known(terms, 0, [])
    with pytest.raises(UserError, match=r"south, west are not confirmed: .* allows 8.0. .*--unconfirmed.*join-unconfirmed"):
        made[0].join(terms)
    assert not made[0].joined and not made[0].ledger.exists()
    made[0].confirm([made[1].own_card().fingerprint])  # two of three make up the planned noise
    assert made[0].join(terms)
    assert made[1].join(terms, unconfirmed=True)
    generous = SiteFolder.create(tmp_path / "own-east", "east", shapes.path, budget=100.0)
    assert generous.join(agree([generous.card, made[1].card, made[2].card], trust="distributed", drops=0, colluders=1))


def test_what_an_epsilon_means_is_said_once(sites, agree):
    """`join` shows all lines; one site alone may answer for three epsilons."""
    for trust in ("central", "distributed", "secure", "local"):
        terms = agree(trust=trust)
        said = " ".join(value for _, value in statement(terms, 0, []))
        assert said.count("whether one particular record") == 1 and said.count("tossing a coin") == 1
