"""Code that terms name: what a site has not allowed is neither imported nor called, and what is another one now is refused."""

import json
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
import tomli_w
from typer.testing import CliRunner

from dpfed import losses
from dpfed.cli import app
from dpfed.config import parse_config
from dpfed.discovery import named
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import refuse_proposal
from dpfed.federation.provisioning.doctor import examine_site
from dpfed.federation.provisioning.network import State
from dpfed.federation.simulation import Simulation, simulate
from dpfed.federation.site.serving import load_site
from dpfed.files.source import find_source
from dpfed.objectives.own import _SHIPPED
from dpfed.progress import Silent
from dpfed.protocol.named_code import code_of, names_of
from dpfed.protocol.terms import Terms
from dpfed.runs.build import build
from tests.federation.provisioning.office import PLAN, SITES, Office
from tests.federation.test_one_update import SITES as OWNERS
from tests.federation.test_one_update import SKEW, Wire, coordinate, digests, institutions, released_locally, train_over_flower

NAME = "doors_of_a_clinic.losses:matching"
MODULE = '''
"""Leaves a mark when it is imported, and when it is called."""
from pathlib import Path

MARK = Path({mark!r})
MARK.write_text("imported")


def matching(image, text):
    MARK.write_text("called")
    return (image[:, 0] - text[:, 0]).square().sum(1).mean()
'''


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A file that is there when the code of a package on the path has run."""
    folder = tmp_path / "installed" / "doors_of_a_clinic"
    folder.mkdir(parents=True)
    for name in ("__init__", "losses"):
        (folder / f"{name}.py").write_text(MODULE.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(str(folder.parent))
    yield tmp_path / "mark"
    for name in [name for name in sys.modules if name.startswith("doors_of_a_clinic")]:
        del sys.modules[name]


def edit(tmp_path, text="\n# another version\n", name="losses"):
    file = tmp_path / "installed" / "doors_of_a_clinic" / f"{name}.py"
    file.write_text(file.read_text() + text)


@pytest.fixture
def place(mark, shapes, tmp_path):
    """A site that has its kit with terms that name code."""
    return joinable(tmp_path, shapes, objective={"name": NAME})


def joinable(tmp_path, shapes, **sections):
    """A site that has its kit with terms."""
    office = Office(tmp_path, shapes.path)
    data = {"source": "store", "path": str(office.stores / "evaluation"), "size": 16}
    plan = {**PLAN, "data": data, **sections}
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(plan))
    done = office.provision()
    places = {site: office.set_up(site, done) for site in SITES}
    for each in places.values():
        office.send(each)
    done = office.provision()
    places["north"].unpack(done.kits["north"])
    return places["north"]


@pytest.mark.long
def test_the_coordinator_imports_nothing_to_name_code(place, mark):
    terms = Terms.model_validate(place.kit.terms)
    assert [(part.key, part.name) for part in terms.code] == [("objective.name", NAME)]
    assert not mark.exists() and "doors_of_a_clinic" not in sys.modules


def test_what_nobody_allowed_is_not_joined_and_does_not_run(place, mark, tmp_path):
    with pytest.raises(UserError) as refused:
        place.join()
    said = str(refused.value)
    assert refused.value.code == "join-code" and f"--allow {NAME}" in said and "losses.py" in said and "SHA-256" in said
    assert not place.site.joined and not place.site.ledger.exists()
    findings = [finding for finding in examine_site(place.path) if finding.about == "code"]
    assert [finding.state for finding in findings] == [State.CARE] and "--allow" in findings[0].advice
    for wrong in (["os:system"], [NAME, "os:system"]):
        with pytest.raises(UserError, match="join-allow-unused"):
            place.join(allowed=wrong)
    assert not mark.exists() and "doors_of_a_clinic" not in sys.modules


def test_what_was_allowed_by_name_runs_when_the_site_is_served(place, mark):
    joined = CliRunner().invoke(app, ["site", "join", str(place.path), str(place.path), "--yes", "--allow", NAME])
    assert joined.exit_code == 0, joined.output
    shown = " ".join(joined.output.split())
    assert f"objective.name: {NAME}" in shown and "losses.py" in shown
    assert [finding.state for finding in examine_site(place.path) if finding.about == "code"] == [State.GOOD]
    assert not mark.exists()
    load_site(place.site, print)
    assert mark.read_text() == "called"


@pytest.mark.parametrize("name", ["losses", "__init__"])
def test_another_version_is_refused_before_and_after_joining(place, mark, tmp_path, name):
    original = (tmp_path / "installed" / "doors_of_a_clinic" / f"{name}.py").read_text()
    edit(tmp_path, name=name)
    with pytest.raises(UserError, match="code-other"):
        place.join(allowed=[NAME])
    (tmp_path / "installed" / "doors_of_a_clinic" / f"{name}.py").write_text(original)
    place.join(allowed=[NAME])
    edit(tmp_path, name=name)
    with pytest.raises(UserError, match="code-other"):
        load_site(place.site, print)
    assert [finding.state for finding in examine_site(place.path) if finding.about == "code"] == [State.BAD]
    with pytest.raises(UserError, match="code-other"):  # the coordinator, too
        build(place.site.terms().run_config(), terms=place.site.terms())
    assert not mark.exists()


@pytest.mark.parametrize("kept", [None, "{}", "[", json.dumps({NAME: "0" * 64})])
def test_a_site_without_its_list_of_what_it_allowed_runs_nothing(place, mark, kept):
    place.join(allowed=[NAME])
    file = place.site.path / "allowed.json"
    assert json.loads(file.read_text()).keys() == {NAME}
    file.unlink() if kept is None else file.write_text(kept)
    with pytest.raises(UserError, match="code-allowed-damaged|code-not-allowed"):
        load_site(place.site, print)
    assert not mark.exists()


def test_terms_must_name_the_hash_of_what_they_call(place):
    tree = dict(place.kit.terms)
    for code in ([], [{**tree["code"][0], "name": "doors_of_a_clinic:other"}], [{**tree["code"][0], "key": "model.image"}]):
        with pytest.raises(UserError, match="the parts under `code` are not those that the configuration names"):
            Terms._checked({**tree, "code": code})


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "this:s", "antigravity:geohash"])
@pytest.mark.parametrize("key", ["objective.name", "model.image", "views.transform"])
def test_no_part_of_python_is_named(tiny, name, key):
    section, field = key.split(".")
    kept = {"objective": {}, "views": {}, "model": {"kind": "image", "embedding": 8, "head_hidden": 8}}[section]
    config = parse_config({**tiny, section: {**kept, field: name}})
    for refuse in (code_of, lambda config: refuse_proposal(config, 2), Simulation(sites=2).refuse):
        with pytest.raises(UserError, match="terms-own-parts"):
            refuse(config)
    assert not {"this", "antigravity"} & sys.modules.keys()


def test_what_no_party_needs_is_not_named(tiny):
    config = parse_config({**tiny, "optimizer": {"name": "torch.optim:RAdam"}, "objective": {"name": "dpfed.losses:DCL"}})
    assert names_of(config) == {}  # the coordinator's optimizer, and a loss that every party has
    records = parse_config({**tiny, "data": {"source": "tests.own_parts:photos"}, "evaluation": {"split": "none"}})
    with pytest.raises(UserError, match="terms-own-records"):
        refuse_proposal(records, 2)


def test_the_shipped_losses_are_those_that_the_library_exports():
    pairs = {name for name in losses.__all__ if issubclass(getattr(losses, name), losses.PairLoss)} - {"PairLoss"}
    assert pairs == set(_SHIPPED)


def test_source_is_found_without_an_import(mark, tmp_path, monkeypatch):
    source = find_source("doors_of_a_clinic.losses")
    assert source.file.name == "losses.py" and source.package.name == "doors_of_a_clinic"
    before = source.digest()
    edit(tmp_path, name="__init__")
    assert source.digest() != before and not mark.exists()
    assert find_source("doors_of_a_clinic.nothing") is None and find_source("sys") is None and find_source("nowhere.at") is None
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "doors_alone.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path / "loose")
    assert find_source("doors_alone").package is None


def test_code_is_looked_for_where_it_is_imported(mark, tmp_path, monkeypatch):
    """A plain folder on the path, and a package of that name in the current folder, which Python prefers."""
    for folder, said in (("installed", "looked at"), ("loose", "run")):
        (tmp_path / folder / "doors_of_two").mkdir(parents=True)
        (tmp_path / folder / "doors_of_two" / "losses.py").write_text(f"SAID = {said!r}\n")
    (tmp_path / "loose" / "doors_of_two" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path / "loose")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path / "loose"))])
    file = find_source("doors_of_two.losses").file
    assert named("doors_of_two.losses:SAID", "objective.name") == "run" and file.is_relative_to(tmp_path / "loose")
    monkeypatch.setattr(sys, "path", before := [str(tmp_path / "loose"), *sys.path])
    named("doors_of_two.losses:SAID", "objective.name"), find_source("doors_of_two.losses")
    assert sys.path == before  # what follows is found where it was before
    for name in ("doors_of_two", "doors_of_two.losses"):
        sys.modules.pop(name, None)


def test_a_hash_does_not_cover_hidden_files(mark):
    source = find_source("doors_of_a_clinic.losses")
    before = source.digest()
    (source.package / ".#losses.py").symlink_to("somebody@desk.1")  # an editor's lock
    (source.package / "._losses.py").write_bytes(b"\0\5\x16\7")  # written by macOS
    assert source.digest() == before


def test_a_hash_covers_code_behind_links(mark, tmp_path):
    package = tmp_path / "installed" / "doors_of_a_clinic"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "__init__.py").write_text("A = 1\n")
    (package / "linked").symlink_to(tmp_path / "elsewhere")
    (package / "again").symlink_to(package)  # without an end
    before = find_source("doors_of_a_clinic.linked").digest()
    (tmp_path / "elsewhere" / "__init__.py").write_text("A = 2\n")
    assert find_source("doors_of_a_clinic.linked").digest() != before


def test_a_compiled_module_is_not_taken_for_the_source_beside_it(mark, tmp_path):
    """Python would import the compiled one."""
    beside = tmp_path / "installed" / "doors_of_a_clinic" / f"losses{EXTENSION_SUFFIXES[0]}"
    beside.write_bytes(b"")
    assert find_source("doors_of_a_clinic.losses") is None


def test_no_site_imports_the_coordinators_optimizer(mark, shapes, tmp_path):
    place = joinable(tmp_path, shapes, optimizer={"name": NAME})
    place.join()
    load_site(place.site, print)
    assert not mark.exists() and "doors_of_a_clinic" not in sys.modules


@pytest.fixture
def config(tiny):
    """An encoder, views, a loss and an optimizer by name."""
    tiny["model"] = {
        "kind": "image",
        "image": "tests.own_parts:small",
        "options": {"width": 6},
        "embedding": 8,
        "head_hidden": 8,
    }
    tiny["views"] = {"transform": "tests.own_parts:augment", "options": {"size": 10}}
    tiny["objective"] = {"name": "tests.own_parts:Scaled", "options": {"temperature": 0.7}}
    tiny["optimizer"] = {"name": "torch.optim:RAdam", "learning_rate": 0.01}
    tiny["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 64, "steps": 3, "seed": 7}
    tiny["evaluation"] = {"split": "none"}
    return parse_config(tiny)


@pytest.mark.long
def test_own_parts_train_in_a_federation_as_in_one_process(config, shapes, tmp_path):
    with released_locally(config, tmp_path) as wanted:
        run = simulate(config, tmp_path / "simulated", Simulation(sites=OWNERS, skew=SKEW))
        assert digests(run.ledger) == wanted
        sites, made = institutions(config, shapes, tmp_path)
        wire = Wire({site.path.name: load_site(site, print) for site in sites})
        assert digests(coordinate(made.path, tmp_path / "run", wire, Silent()).ledger) == wanted
    for card in (run.card.read_text(), (tmp_path / "run" / "privacy_card.md").read_text()):
        for name in ("tests.own_parts:small", "tests.own_parts:augment", "tests.own_parts:Scaled"):
            assert name in card


@pytest.mark.slow
def test_own_parts_train_over_flower_as_in_one_process(config, shapes, tmp_path):
    sites, made = institutions(config, shapes, tmp_path)
    with released_locally(config, tmp_path) as wanted:
        train_over_flower(sites, made, tmp_path / "run")
        assert digests(tmp_path / "run" / "ledger.jsonl") == wanted
