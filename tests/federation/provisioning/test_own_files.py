"""Whatever is wrong with what a site made for itself, its doctor says so, and what to do."""

import os
import shutil

import pytest

from dpfed.errors import UserError
from dpfed.federation.leaving import refuse_if_left
from dpfed.federation.provisioning.certificates import make_node_key
from dpfed.federation.provisioning.doctor import examine_site
from dpfed.federation.provisioning.network import State
from dpfed.federation.provisioning.site_place import SitePlace
from dpfed.federation.site.serving import load_site
from tests.federation.provisioning.office import Office


@pytest.fixture(scope="module")
def joined(tmp_path_factory, shapes):
    return Office(tmp_path_factory.mktemp("office"), shapes.path).joined()["south"]


@pytest.fixture
def place(joined, tmp_path):
    return SitePlace(shutil.copytree(joined.path, tmp_path / "chest-south", symlinks=True))


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


@pytest.mark.parametrize("names", [("node",), ("node.pub", "node"), ("runtime.secret",)])
def test_keys_of_the_supernode_that_are_gone(place, names):
    for name in names:
        (place.path / "keys" / name).unlink()
    assert "is missing" in bad(place)["keys"]


@pytest.mark.parametrize("harm", ["cut", "empty", "another"])
def test_a_key_of_the_supernode_that_is_damaged(place, harm, tmp_path):
    key = place.keys / "node"
    make_node_key(tmp_path / "other", "node")
    content = {"cut": key.read_bytes()[:-20], "empty": b"", "another": (tmp_path / "other" / "node").read_bytes()}[harm]
    key.write_bytes(content)
    assert "damaged" in bad(place)["keys"] and "site setup" in bad(place)["keys"]


def test_a_key_that_is_another_sites(place):
    (place.site.path / "identity.key").write_bytes(bytes(range(32)))
    assert "not the key of the site's card" in bad(place)["keys"]


@pytest.mark.parametrize("name", ["door/socket.lock", "site/.lock"])
def test_a_lock_that_is_a_link_or_a_folder(place, name, tmp_path):
    lock = place.path / name
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "elsewhere")
    assert f"rm -r {lock}" in bad(place)["door"]
    lock.unlink()
    lock.mkdir()
    assert f"rm -r {lock}" in bad(place)["door"]


def test_a_door_that_does_not_open(place, monkeypatch):
    door = place.path / "door"
    door.chmod(0o777)
    assert f"chmod go-w {door}" in bad(place)["door"]
    door.chmod(0o750)
    (door / "socket").write_text("x")
    assert "is no socket" in bad(place)["door"]
    shutil.rmtree(door)
    assert bad(place) == {} and "door is missing" in str(examine_site(place.path))
    door.write_text("x")
    assert "no directory" in bad(place)["door"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_door_of_another_user(place):
    os.chown(place.path / "door", 65534, 65534)
    assert "belongs to user 65534" in bad(place)["door"]
    os.chown(place.site.path, 65534, 65534)  # the worker's user has both, as the kit's README.md has it
    assert "door" not in bad(place)


def test_a_budget_that_was_lowered_since_the_site_joined(place):
    settings = place.site.path / "site.toml"
    settings.write_text(settings.read_text().replace("budget = 8.0", "budget = 1.0"))
    assert "this site's budget is 1.0" in bad(place)["budget"]
    with pytest.raises(UserError, match=r"budget is 1\.0"):
        load_site(place.site, lambda text: None)


@pytest.mark.parametrize("content", ["[[", "{}", '{"day": 5}', '{"day": "\\u001b[2J"}', None])
def test_a_site_that_has_left_has_left_whatever_became_of_the_note(place, content):
    note = place.site.path / "left.json"
    note.mkdir() if content is None else note.write_text(content)
    with pytest.raises(UserError, match="permanently on a day that is not known"):
        refuse_if_left(place.site.path)
    assert "has left" in str(examine_site(place.path))


def test_a_ledger_that_is_gone_or_closed(place):
    place.site.ledger.chmod(0o400)
    assert "cannot be written" in bad(place)["budget"]
    place.site.ledger.unlink()
    assert "ledger.jsonl is missing" in bad(place)["budget"]
    place.leave()
    assert bad(place) == {}
    assert "start node" not in str(examine_site(place.path))  # it is over


def test_terms_that_are_gone_while_the_ledger_has_paid(place):
    from dpfed.privacy.ledger import Ledger, Release

    Ledger.open(place.site.ledger).charge(Release(0, "0" * 32))
    (place.site.path / "terms.json").unlink()
    assert "whose terms are gone" in bad(place)["terms"]


def test_programs_that_are_nowhere(place):
    (place.path / "venv").unlink()
    (place.path / "venv").symlink_to("/nowhere")
    assert "dpfed site link" in str([one for one in examine_site(place.path) if one.about == "versions"])


def test_what_is_no_text_gets_a_sentence(place):
    place.settings.write_bytes(b"\xff\xfe=\0")
    assert "NAME=VALUE" in bad(place)["ports"]
    pin = place.path / "keys" / "coordinator.json"
    for content in (b"[", b"\xff", b"[" * 100_000):
        pin.write_bytes(content)
        with pytest.raises(UserError, match=r"coordinator\.json is missing or damaged"):
            examine_site(place.path)
    pin.unlink()
    with pytest.raises(UserError, match=r"coordinator\.json is missing or damaged"):
        examine_site(place.path)


def test_storage_that_is_read_only(place, monkeypatch):
    flags = type(
        "Flags", (), {"f_flag": os.ST_RDONLY, "f_bavail": 1 << 30, "f_blocks": 1 << 30, "f_bfree": 0, "f_frsize": 4096}
    )
    monkeypatch.setattr("dpfed.federation.provisioning.doctor.os.statvfs", lambda _: flags)
    assert "read-only" in bad(place)["disk"]
