"""A site's records are those of its card, when it joins and whenever it is served; what it spent, it can look at."""

import json
import shutil

import pytest

from dpfed.config import parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.provisioning.doctor import _store
from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.serving import load_site
from dpfed.privacy.ledger import Ledger, Release
from dpfed.protocol.terms import Terms


@pytest.fixture
def sites(tiny, shapes, tmp_path):
    """Three sites, the first of which has records of its own that a test may change, and the terms."""
    tiny["privacy"]["accountant"] = "rdp"
    shutil.copytree(shapes.path, tmp_path / "own")
    stores = {"north": tmp_path / "own", "south": shapes.path, "west": shapes.path}
    made = [SiteFolder.create(tmp_path / name, name, store) for name, store in stores.items()]
    folder = CoordinatorFolder.create(tmp_path / "chest", parse_config(tiny), [site.card for site in made])
    return made, Terms.load(folder.terms)


def exchanged(site, train=500):
    """Puts other records, and fewer, into the place of a site's."""
    store = RecordStore.open(site.settings().store).path
    shutil.rmtree(store)
    write_shapes(store, train=train, validation=0, test=0, seed=5)


def test_the_card_and_the_terms_name_the_records(sites, shapes):
    made, terms = sites
    assert made[0].own_card().contents == shapes.contents == terms.sites[0].contents
    other = made[0].own_card().model_copy(update={"contents": "0" * 32})
    assert other.fingerprint != made[0].own_card().fingerprint


def test_records_that_change_before_joining_are_refused(sites):
    made, terms = sites
    exchanged(made[0])
    with pytest.raises(UserError, match=r"holds other records than when .*card.json was made.*site-records-changed"):
        made[0].join(terms)
    assert not made[0].joined and not made[0].ledger.exists()


def test_records_changed_after_joining_are_refused_until_back(sites, shapes):
    made, terms = sites
    made[0].join(terms)
    said = []
    load_site(made[0], said.append)
    assert "fingerprint" in next(_store(made[0])).said
    exchanged(made[0])
    for look in (lambda: load_site(made[0], said.append), lambda: list(_store(made[0]))):
        with pytest.raises(UserError, match="with 500 training records now.*restore the store.*site-records-changed"):
            look()
    store = RecordStore.open(made[0].settings().store).path
    shutil.rmtree(store)
    shutil.copytree(shapes.path, store)  # as the refusal advises
    load_site(made[0], said.append)


def test_terms_of_cards_without_records_keep_their_hash(sites):
    _, terms = sites
    tree = json.loads(terms.text)
    for site in tree["sites"]:
        site["contents"] = None
    without = Terms.model_validate(tree)
    for site in tree["sites"]:
        del site["contents"]
    assert Terms.model_validate(tree).fingerprint == without.fingerprint != terms.fingerprint


def test_a_site_sees_its_ledger_over_the_steps(sites, dpfed):
    made, terms = sites
    code, _, error = dpfed("site", "ledger", made[0].path)
    assert code == 2 and "site-not-joined" in error
    made[0].join(terms)
    ledger = Ledger.open(made[0].ledger)
    for step in (0, 2):
        ledger.charge(Release(step, "0" * 32))
    code, out, _ = dpfed("site", "ledger", made[0].path)
    lines = " ".join(out.split())
    assert (
        code == 0
        and "answered 2 of 6 steps" in lines
        and "not answered 1 of the first 3 steps, most recently in step 1" in lines
    )
    assert "step 0 epsilon" in lines and "step 2 epsilon" in lines
    code, out, _ = dpfed("site", "ledger", made[0].path, "--json")
    facts = json.loads(out)
    assert (
        code == 0 and facts["answered"] == [0, 2] and facts["epsilon"] == ledger.epsilon == facts["over_steps"][-1]["epsilon"]
    )
    assert facts["of"] == terms.privacy_plan.epsilon()
