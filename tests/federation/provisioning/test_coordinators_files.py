"""Whatever is wrong with what a coordinator keeps, its doctor says so, and what to do."""

import shutil

import pytest

from dpfed.federation.provisioning.doctor import examine_coordinator
from dpfed.federation.provisioning.network import State
from tests.federation.provisioning.office import Office


@pytest.fixture(scope="module")
def made(tmp_path_factory, shapes):
    office = Office(tmp_path_factory.mktemp("office"), shapes.path)
    office.joined()
    return office.folder / "chest"


@pytest.fixture
def chest(made, tmp_path):
    return shutil.copytree(made, tmp_path / "chest", symlinks=True)


def bad(chest):
    findings = examine_coordinator(chest)
    assert all(finding.advice for finding in findings if finding.state is not State.GOOD)
    return {finding.about: f"{finding.said} {finding.advice}" for finding in findings if finding.state is State.BAD}


def test_nothing_is_wrong(chest):
    assert bad(chest) == {}


@pytest.mark.parametrize("name", ["federation/identity.key", "federation/config.toml", "nodes"])
def test_what_is_missing(chest, name):
    shutil.rmtree(chest / name) if name == "nodes" else (chest / name).unlink()
    assert str(chest / name) in bad(chest)["keys"]


def test_a_key_that_the_terms_do_not_name(chest):
    (chest / "federation" / "identity.key").write_bytes(bytes(range(32)))
    assert "not the key that the terms name" in bad(chest)["keys"]


@pytest.mark.parametrize("name", ["federation/identity.key", "certificates/server.key", "certificates/inner/server.key"])
def test_what_others_may_read(chest, name):
    (chest / name).chmod(0o644)
    assert f"chmod go= {chest / name}" in bad(chest)["keys"]
