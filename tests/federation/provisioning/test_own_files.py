"""Whatever is wrong with what a site made for itself, its doctor says so, and what to do."""

import json
import os
import shutil

import pytest

from dpfed.errors import UserError
from dpfed.federation.provisioning.doctor import examine_site
from dpfed.federation.provisioning.network import State
from dpfed.federation.provisioning.site_paths import SitePaths
from dpfed.federation.site.serving import load_site
from dpfed.privacy.ledger import Ledger, Release
from tests.federation.provisioning.office import Office


@pytest.fixture(scope="module")
def joined(tmp_path_factory, shapes):
    return Office(tmp_path_factory.mktemp("office"), shapes.path).joined()["south"]


@pytest.fixture
def place(joined, tmp_path):
    return SitePaths(shutil.copytree(joined.path, tmp_path / "chest-south", symlinks=True))


@pytest.fixture(autouse=True)
def nobody_is_called(monkeypatch):
    monkeypatch.setattr("dpfed.federation.provisioning.doctor.of_connection", lambda *_: iter(()))


def bad(place):
    findings = examine_site(place.path)
    assert all(finding.advice for finding in findings if finding.state is not State.GOOD)
    return {finding.about: f"{finding.said} {finding.advice}" for finding in findings if finding.state is State.BAD}


def folder_at(path):
    path.unlink(missing_ok=True)
    path.mkdir()


def test_nothing_is_wrong(place):
    assert bad(place) == {}


@pytest.mark.parametrize("name", ["secret.key", "identity.key"])
@pytest.mark.parametrize("harm", ["missing", "folder", "short", "pipe"])
def test_a_key_that_is_none(place, name, harm):
    key = place.site.path / name
    pipe = lambda: (key.unlink(), os.mkfifo(key))  # noqa: E731
    {"pipe": pipe, "missing": key.unlink, "folder": lambda: folder_at(key), "short": lambda: os.truncate(key, 5)}[harm]()
    assert list(bad(place)) == ["keys"] and name in bad(place)["keys"]


@pytest.mark.parametrize("name", ["site/secret.key", "site/identity.key", "keys/node", "keys/runtime.secret", "site", "keys"])
def test_what_others_may_read(place, name):
    (place.path / name).chmod(0o755)
    assert "other users may reach" in bad(place)["keys"] and f"chmod go= {place.path / name}" in bad(place)["keys"]


def test_a_key_that_is_another_sites(place):
    (place.site.path / "identity.key").write_bytes(bytes(range(32)))
    assert "not the key of the site's card" in bad(place)["keys"]


def test_a_budget_that_was_lowered_since_the_site_joined(place):
    settings = place.site.path / "site.toml"
    settings.write_text(settings.read_text().replace("budget = 8.0", "budget = 1.0"))
    assert "allows 1.0: take no part" in bad(place)["budget"]
    with pytest.raises(UserError, match="join-budget"):
        load_site(place.site, lambda text: None)


def test_values_in_quotes_count_as_for_systemd_and_a_shell(place):
    place.settings.write_text('DPFED_PORT="9211"\nHTTPS_PROXY=\'http://proxy:3128\'\nODD="\n')
    assert place.env() == {"DPFED_PORT": "9211", "HTTPS_PROXY": "http://proxy:3128", "ODD": '"'}
    assert bad(place) == {}


def test_terms_of_another_release_in_a_kit(place, monkeypatch):
    kit = place.kit
    newer = kit.model_copy(update={"terms": {**kit.terms, "unknown": 1}, "release": "9.9"})
    monkeypatch.setattr(SitePaths, "kit", property(lambda self: newer))
    (place.site.path / "terms.json").unlink()
    assert "cannot read the terms in the kit" in bad(place)["code"] and "dpfed 9.9" in bad(place)["code"]


def test_records_that_have_grown_are_to_be_restored_not_declared_anew(place):
    """Nothing can be declared any more, once there is a card."""
    card = json.loads(place.site.card.read_text())
    place.site.card.write_text(json.dumps({**card, "records": 1, "contents": "0" * 32}))
    assert "restore the store" in bad(place)["store"]


def test_a_ledger_that_is_gone_or_closed(place):
    place.site.ledger.chmod(0o400)
    assert "cannot be written" in bad(place)["budget"]
    place.site.ledger.unlink()
    assert "ledger.jsonl is missing" in bad(place)["budget"]
    place.leave()
    assert bad(place) == {}
    assert "start node" not in str(examine_site(place.path))  # it is over


def test_terms_that_are_gone_while_the_ledger_has_paid(place):
    Ledger.open(place.site.ledger).charge(Release(0, "0" * 32))
    (place.site.path / "terms.json").unlink()
    assert "whose terms are gone" in bad(place)["terms"]
