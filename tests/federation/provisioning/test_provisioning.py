"""From a project to joined sites; what is foreign, altered, old or in the way is refused, and nothing is lost."""

import shutil
import stat
import tomllib

import pytest
import tomli_w

from dpfed.budgets.registry import budgets_of
from dpfed.budgets.spending import set_budget
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.provisioning import site_paths
from dpfed.federation.provisioning.doctor import examine_site
from dpfed.federation.provisioning.kits import Kit, Reply
from dpfed.federation.provisioning.network import State
from dpfed.federation.provisioning.provision import state_of
from dpfed.federation.provisioning.site_paths import SitePaths
from dpfed.federation.site.folder import SiteFolder
from dpfed.files import atomic
from dpfed.privacy.ledger import Ledger, Release
from dpfed.protocol.identity import Identity
from tests.federation.provisioning.office import SITES, Office
from tests.killed import killed


@pytest.fixture
def office(shapes, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "shelf"))
    return Office(tmp_path, shapes.path)


@pytest.fixture(scope="module")
def invited(shapes, tmp_path_factory):
    """An office and the site north, which has its keys; tests change nothing there."""
    folder = tmp_path_factory.mktemp("invited")
    office = Office(folder, shapes.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFED_BUDGETS", str(folder / "shelf"))  # not that of the user who runs the tests
        done = office.provision()
        return office, done, office.set_up("north", done)


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_two_rounds_lead_from_a_project_to_joined_sites(office):
    first = office.provision()
    assert first.waiting == list(SITES) == first.changed and first.terms is None
    assert office.provision().changed == []  # nothing is new, so nothing is made anew
    places = {site: office.set_up(site, first) for site in SITES}
    with pytest.raises(UserError, match="send .*reply.json.*kit-no-terms"):
        places["north"].join()
    office.send(places["north"])
    assert office.provision().waiting == ["south"]
    office.send(places["south"])
    second = office.provision()
    assert second.waiting == [] and second.changed == list(SITES) and second.terms.coordinator
    assert [site.name for site in second.terms.sites] == list(SITES)
    for site, place in places.items():
        assert place.unpack(second.kits[site]) and not place.unpack(second.kits[site])
        assert place.join().fingerprint == second.terms.fingerprint == place.site.terms().fingerprint
    assert not (office.folder / "chest" / "identity.key").exists()  # the federation's folder has it, once
    assert office.provision().fingerprint == first.fingerprint


def test_keys_are_made_at_the_site_and_never_in_a_kit(invited):
    office, done, place = invited
    secrets = [*(place.path / "keys").glob("*"), *place.site.path.glob("*.key")]
    secrets = [file for file in secrets if file.suffix != ".pub"]
    assert len(secrets) == 4 and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in secrets)
    for kit in done.kits.values():
        content = kit.read_bytes()
        assert b"PRIVATE KEY" not in content
        coordinators = (office.folder / "chest").rglob("*.key")
        assert not any(file.read_bytes() in content for file in (*secrets, *coordinators))
        assert not any(file.read_bytes().hex().encode() in content for file in secrets)
    assert b"PRIVATE" not in place.reply.read_bytes()


def test_another_coordinators_kit_is_refused_before_anything_is(invited, tmp_path):
    office, done, _ = invited
    other = Identity.fresh()
    forged = Kit.load(done.kits["south"]).model_copy(update={"coordinator": other.signing_key})
    (tmp_path / "k").write_text(forged.signed(other))
    with pytest.raises(UserError, match="kit-coordinator"):
        SitePaths.set_up(tmp_path / "k", tmp_path / "new", done.fingerprint, office.store("south"))
    assert not (tmp_path / "new").exists()


def test_nothing_is_set_up_over_a_site_or_in_a_folder_in_use(invited, tmp_path):
    office, done, place = invited
    before = everything(place.path)
    with pytest.raises(UserError, match="kit-set-up"):
        SitePaths.set_up(done.kits["north"], place.path.parent, done.fingerprint, office.store("north"))
    (tmp_path / "chest-north").mkdir()
    (tmp_path / "chest-north" / "photo.jpg").touch()
    with pytest.raises(UserError, match="kit-folder-in-use"):
        SitePaths.set_up(done.kits["north"], tmp_path, done.fingerprint, office.store("north"))
    assert before == everything(place.path)


def test_other_kits_leave_a_site_as_it_is(office, shapes, tmp_path):
    done = office.provision()
    place = office.set_up("north", done)
    (tmp_path / "elsewhere").mkdir()
    other = Office(tmp_path / "elsewhere", shapes.path).provision()
    (tmp_path / "old").write_bytes(done.kits["north"].read_bytes())
    office.move("elsewhere.example.org")
    newer = office.provision()
    assert place.unpack(newer.kits["north"]) and place.kit.superlink == "elsewhere.example.org:9443"
    before = everything(place.path)
    for kit, said in (
        (other.kits["north"], "kit-federation"),
        (newer.kits["south"], "kit of south, .* north.*kit-site"),
        (tmp_path / "old", r"\(number 1\).*\[kit-older\]"),
    ):
        with pytest.raises(UserError, match=said):
            place.unpack(kit)
    assert before == everything(place.path)


def test_a_newer_kit_keeps_what_the_site_made(office):
    place = office.set_up("north", office.provision())
    made = {path: content for path, content in everything(place.path).items() if path.parts[0] in ("site", "keys", ".env")}
    assert len(made) > 5
    office.move("elsewhere.example.org")
    assert place.unpack(office.provision().kits["north"])
    after = everything(place.path)
    assert all(after[path] == content for path, content in made.items())
    assert "elsewhere.example.org" in (place.path / "systemd" / "dpfed-node@.service").read_text()


def test_the_same_kit_restores_what_was_lost(office):
    done = office.provision()
    place = office.set_up("north", done)
    before = everything(place.path)
    assert not place.unpack(done.kits["north"])
    (place.path / "ca.crt").unlink()
    (place.path / "kit.json").unlink()
    unit = place.path / "systemd" / "dpfed-node@.service"
    unit.write_text(unit.read_text()[:40])
    assert place.unpack(done.kits["north"])
    assert {path: content for path, content in everything(place.path).items() if path in before} == before


def test_anothers_kit_copied_over_a_site_is_noticed_and_mended(office, dpfed):
    done = office.provision()
    place = office.set_up("north", done)
    other, kit, here = Identity.fresh(), Kit.load(done.kits["north"]), place.path / "kit.json"
    here.write_text(kit.model_copy(update={"coordinator": other.signing_key, "serial": 9}).signed(other))
    for use in (place.join, lambda: examine_site(place.path)):
        with pytest.raises(UserError, match="kit-other-origin"):
            use()
    shutil.copy(done.kits["south"], here)
    with pytest.raises(UserError, match="kit-other-origin"):
        place.join()
    with pytest.raises(UserError, match="kit-site"):
        place.unpack(here)
    code, _, error = dpfed("site", "join", place.path, done.kits["north"])
    assert code == 2 and "[kit-no-terms]" in error and place.kit == kit
    (place.site.path / "coordinator.json").write_text("[]")
    with pytest.raises(UserError, match="kit-origin-damaged"):
        place.unpack(done.kits["north"])
    place.reply.unlink()
    assert office.set_up("north", done).kit == kit


def test_a_setup_that_was_refused_or_cut_short_goes_on(office, monkeypatch):
    done = office.provision()
    with pytest.raises(UserError, match="nowhere"):
        SitePaths.set_up(done.kits["north"], office.folder / "m", done.fingerprint, office.folder / "nowhere")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SitePaths, "write_reply", lambda place: (_ for _ in ()).throw(KeyboardInterrupt))
        SitePaths.set_up(done.kits["north"], office.folder / "m", done.fingerprint, office.store("north"))
    place = SitePaths.set_up(done.kits["north"], office.folder / "m", done.fingerprint, office.store("north"))
    assert place.reply.exists() and place.env()["DPFED_BUDGETS"] == str(place.path / "budgets")


def test_provisioning_that_is_cut_short_in_any_write_goes_on(office):
    """Each try gets one file further. What was made is kept, keys above all; a write that is cut short leaves no file."""
    made, names = {}, ["identity.key", "ca.key", "server.key"]
    for _ in range(6):
        with killed(atomic, "write_whole", at=2):
            office.provision()
        now = {path: path.read_bytes() for path in (office.folder / "chest").rglob("*.key")}
        assert all(now[path] == content for path, content in made.items()) and all(now.values())
        made = now
    assert sorted(path.name for path in made) == sorted(names)
    assert sorted(office.provision().kits) == sorted(SITES)


@pytest.mark.parametrize("before", [True, False])
def test_a_setup_that_is_cut_short_at_any_file_goes_on(office, before):
    done = office.provision()
    into = office.folder / "m"
    for file in (1, 2, 5, 9):
        with killed(site_paths, "write_atomically", file, before):
            SitePaths.set_up(done.kits["north"], into, done.fingerprint, office.store("north"))
    assert not (into / "chest-north" / "reply.json").exists()
    assert SitePaths.set_up(done.kits["north"], into, done.fingerprint, office.store("north")).reply.exists()


def test_a_site_joins_only_the_terms_of_its_kits_coordinator(office):
    done = office.provision()
    places = {site: office.set_up(site, done) for site in SITES}
    for place in places.values():
        office.send(place)
    second = office.provision()
    place = places["north"]
    place.unpack(second.kits["north"])
    key, identity = place.path / "kit.json", office.folder / "chest" / "federation" / "identity.key"
    terms = place.kit.terms | {"coordinator": Identity.fresh().signing_key}
    key.write_text(place.kit.model_copy(update={"terms": terms}).signed(Identity.load(identity)))
    with pytest.raises(UserError, match="kit-foreign-terms"):
        place.join()
    assert not place.site.joined


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda reply: reply.model_copy(update={"invitation": "f" * 32}), "kit-reply-other"),
        (lambda reply: reply.model_copy(update={"federation": "other"}), "kit-reply-other"),
        (lambda reply: reply.model_copy(update={"protocol": 99, "release": "9.9"}), "9.9, .*protocol 99.*kit-reply-release"),
        (lambda reply: reply.model_copy(update={"node_key": "ssh-rsa AAAA"}), "kit-reply-key"),
        (
            lambda reply: reply.model_copy(update={"card": reply.card.model_copy(update={"name": "stranger"})}),
            "kit-reply-stranger",
        ),
    ],
    ids=["invitation", "federation", "protocol", "key", "name"],
)
def test_a_reply_that_does_not_answer_the_kit_is_refused(invited, change, said, tmp_path):
    office, _, place = invited
    into = office.folder / "chest" / "replies" / "reply.json"
    try:
        into.write_text(change(Reply.load(place.reply)).signed(place.site.identity()))
        with pytest.raises(UserError, match=said):
            office.provision()
    finally:
        into.unlink()


def test_a_reply_that_was_altered_or_is_none_is_refused(invited):
    office, _, place = invited
    into = office.folder / "chest" / "replies" / "reply.json"
    text = place.reply.read_text()
    number = Reply.load(place.reply).card.records
    try:
        for content, said in (
            (text.replace(f'\\"records\\": {number}', '\\"records\\": 99999'), "kit-reply-altered"),
            ("{}", "kit-reply-file"),
            (text[:-40], "kit-reply-file"),
            (text.replace('"content": "{', '"content": "{\\"left\\": \\"\\ud800\\",'), "kit-reply-file"),
        ):
            into.write_text(content)
            with pytest.raises(UserError, match=said):
                office.provision()
    finally:
        into.unlink()


def test_hidden_files_of_file_systems_are_in_nobodys_way(office):
    chest = office.folder / "chest"
    for place in (chest, office.folder / "machines" / "north" / "chest-north"):
        place.mkdir(parents=True)
        (place / ".DS_Store").touch()
    place = office.set_up("north", office.provision())
    office.send(place)
    hidden = [chest / "replies" / "._north.json", chest / "nodes" / "._north.pub"]
    for file in hidden:
        file.write_bytes(b"\0\5\26\7\xff")
    done = office.provision()
    assert done.waiting == ["south"] and all(file.exists() for file in hidden)
    assert not any("._north" in news for news in done.news)


def test_settings_that_services_would_read_are_in_the_way(office):
    chest = office.folder / "chest"
    chest.mkdir()
    (chest / ".env").write_text("HTTPS_PROXY=http://elsewhere:1\n")
    with pytest.raises(UserError, match="holds other files.*project-folder-in-use"):
        office.provision()
    (chest / ".env").unlink()
    place = office.folder / "machines" / "north" / "chest-north"
    place.mkdir(parents=True)
    (place / ".env").write_text("HTTPS_PROXY=http://elsewhere:1\n")
    with pytest.raises(UserError, match="kit-folder-in-use"):
        office.set_up("north", office.provision())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"{}", b'{"name": "chest", "invitations": 1}'])
def test_a_damaged_state_of_a_folder_is_named(office, content):
    chest = office.folder / "chest"
    chest.mkdir()
    (chest / "provision.json").write_bytes(content)
    with pytest.raises(UserError, match="provision.json is damaged.*project-state-damaged"):
        office.provision()
    with pytest.raises(UserError, match="project-state-damaged"):
        state_of(chest)


@pytest.mark.parametrize("content", [b"", b"\xff", b"1", b"[" * 100_000])
def test_a_damaged_list_of_who_left_only_explains_less(tmp_path, content):
    (tmp_path / "left.json").write_bytes(content)
    assert CoordinatorFolder(tmp_path).left() == []


def test_two_sites_of_one_name_or_one_key_are_told_apart(office, tmp_path):
    done = office.provision()
    place = office.set_up("north", done)
    again = SitePaths.set_up(done.kits["north"], tmp_path / "again", done.fingerprint, office.store("north"))
    office.send(place)
    office.send(again, "north-2")
    with pytest.raises(UserError, match="north.*project-two-replies"):
        office.provision()
    (office.folder / "chest" / "replies" / "north-2.json").unlink()
    south = office.set_up("south", done)
    shutil.copy(place.keys / "node.pub", south.keys / "node.pub")
    south.write_reply()
    office.send(south)
    with pytest.raises(UserError, match="project-keys"):
        office.provision()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sites": ["north", "North"]}, "differ at most in capitals"),
        ({"sites": ["north", "../x"]}, "sites"),
        ({"sites": []}, "sites"),
        ({"name": "a b"}, "name"),
        ({"host": "https://x"}, "without scheme and port"),
        ({"host": "x:9443"}, "without scheme and port"),
        ({"host": "x\ny"}, "host"),
        ({"host": "x:y"}, "without scheme and port"),
        ({"host": "x..y"}, "host"),
        ({"host": "x" * 64}, "host"),
        ({"host": "999.1.1.1"}, "host"),
        ({"host": "0.0.0.0"}, "that sites can reach"),
        ({"port": 0}, "port"),
        ({"port": 8100}, "the SuperLink listens on 8100"),
        ({"trust": "secure", "drops": 1, "colluders": 0}, "bear at most 0 missing"),
        ({"colluders": 2, "trust": "distributed"}, "no site is left whose noise"),
        ({"config": "no.toml"}, "there is no file no.toml"),
        ({"trsut": "secure"}, "trsut"),
    ],
    ids=str,
)
def test_a_project_that_cannot_be_is_refused(office, more, said):
    office.write(**more)
    with pytest.raises(UserError, match=said):
        office.provision()
    assert not (office.folder / "chest").exists()


def test_a_project_with_terms_keeps_its_sites_and_its_trust(office):
    office.joined()
    for more, said in (
        ({"sites": ["north"]}, "sites north, south.*project-other-sites"),
        ({"trust": "local"}, "trust =.*project-other-options"),
    ):
        office.write(**more)
        with pytest.raises(UserError, match=said):
            office.provision()
    office.write(name="other")
    with pytest.raises(UserError, match="'chest'.*project-other-name"):
        office.provision(folder=office.folder / "chest")


def test_each_file_that_has_changed_says_what_to_do(office):
    office.provision()
    office.write(port=9555, link_port=8222)
    said = dict(news.split(" has changed: ") for news in office.provision().news if " has changed: " in news)
    assert said.pop("README.md") == "read it again"
    assert said.pop("proxy.conf").startswith("run `nginx -t && nginx -s reload`")
    assert said.pop("systemd/dpfed-superlink@.service").startswith("copy it again")
    assert said == {"programs/superlink": "restart its program"}


def test_a_new_certificate_needs_no_new_kit(office):
    office.provision()
    certificates = office.folder / "chest" / "certificates"
    inner, before = (certificates / "inner" / "server.pem").read_bytes(), (certificates / "server.pem").read_bytes()
    for name in ("server.pem", "server.key"):
        (certificates / name).unlink()
    renewed = office.provision()
    assert renewed.news == ["the server's certificate is new: run `nginx -s reload`, so that the proxy uses it"]
    assert renewed.changed == [] and (certificates / "server.pem").read_bytes() != before
    assert (certificates / "inner" / "server.pem").read_bytes() == inner  # SuperLink is not restarted
    for name in ("server.pem", "server.key", "ca.key"):
        (certificates / name).unlink()
    with pytest.raises(UserError, match=r"ca\.key.*certificate-no-key"):
        office.provision()


def test_who_leaves_keeps_what_was_spent_and_settling_gives_the_rest_back(office, dpfed):
    store = RecordStore.open(office.store("north"))
    set_budget(store, 40.0, 1e-3)
    place = office.joined()["north"]
    Ledger.open(place.site.ledger).charge(Release(0, "0" * 32))
    ledger, taken = place.site.ledger.read_bytes(), budgets_of(store)[0].budget.spent
    place.leave()
    place.leave()  # again, it changes nothing
    assert place.site.ledger.read_bytes() == ledger and budgets_of(store)[0].budget.spent == taken
    assert not (place.site.path / "secret.key").exists()
    with pytest.raises(UserError, match="site-left"):
        place.site.join(place.site.terms())
    code, _, error = dpfed("site", "join", place.path, office.provision().kits["north"])
    assert code == 2 and "[site-left]" in error
    code, _, error = dpfed("budget", "settle", place.path)  # as its site folder does
    assert code == 0, error
    assert budgets_of(store)[0].budget.spent < taken
    assert Reply.load(place.reply).left
    office.send(place)
    assert office.provision().left == ["north"]
    assert {file.name for file in (office.folder / "chest" / "nodes").iterdir()} == {"south.pub"}


def test_a_site_that_is_served_does_not_leave(office):
    place = office.joined()["north"]
    with SiteFolder.open(place.path).locked(), pytest.raises(UserError, match="served by another process"):
        place.leave()
    assert (place.site.path / "secret.key").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"path": None}}, "needs data.path"),
        ({"data": {"path": "/nowhere"}}, "no record store at /nowhere"),
        ({"model": {"start": "/nowhere"}}, "nothing at /nowhere"),
        ({"evaluation": {"split": "validation"}}, "split of .* is empty"),
        ({"bounding": {"group_size": 64}}, "group_size must lie in 2..60"),
        ({"data": {"size": None}}, "squares of 32 pixels"),
        ({"privacy": {"not_covered": "mine"}}, "terms-not-covered"),
        ({"privacy": {"seed": 3}}, "terms-seed"),
    ],
)
def test_a_wrong_configuration_is_told_before_any_site_is_asked(office, monkeypatch, changes, said):
    monkeypatch.setattr("dpfed.runs.preflight.SIZE", 16)
    plan = tomllib.loads((office.folder / "plan.toml").read_text())
    for section, values in changes.items():
        plan[section] = {key: value for key, value in {**plan[section], **values}.items() if value is not None}
    (office.folder / "plan.toml").write_text(tomli_w.dumps(plan))
    with pytest.raises(UserError, match=said):
        office.provision()
    assert not (office.folder / "chest").exists()


def test_a_site_and_its_doctor_know_which_copies_it_needs(office, dpfed, public_store, tmp_path):
    plan = (office.folder / "plan.toml").read_text().replace("group_size = 4\n", 'method = "public"\n')
    (office.folder / "plan.toml").write_text(plan + f'\n[public]\npath = "{public_store.path}"\n')
    done = office.provision()
    places = {
        site: office.set_up(site, done, **({"public": str(public_store.path)} if site == "south" else {})) for site in SITES
    }
    for place in places.values():
        office.send(place)
    kits = office.provision().kits
    told = {site: dpfed("site", "join", place.path, kits[site], "--yes") for site, place in places.items()}
    assert [code for code, _, _ in told.values()] == [0, 0]
    assert "The site has joined, but cannot be served yet: the public records 'shapes' (`public`)" in told["north"][1]
    assert "cannot be served yet" not in told["south"][1]
    copies = {
        site: [finding for finding in examine_site(place.path) if finding.about == "copies"] for site, place in places.items()
    }
    assert copies["north"][0].state is State.BAD and copies["south"][0].state is State.GOOD
    settings = places["north"].path / "site" / "site.toml"
    settings.write_text(settings.read_text() + f'public = "{public_store.path}"\n')
    [finding] = [finding for finding in examine_site(places["north"].path) if finding.about == "copies"]
    assert finding.state is State.GOOD


def test_a_site_and_its_doctor_know_whether_its_anchors_are_there(office, public_store, tmp_path):
    shutil.copytree(public_store.path, tmp_path / "anchors")
    plan = (office.folder / "plan.toml").read_text()
    batch = f'[model]\nnormalisation = "batch"\nanchors = "{tmp_path / "anchors"}"\nanchor_count = 4\n'
    (office.folder / "plan.toml").write_text(plan.replace("[model]\n", batch))
    place = office.joined()["north"]
    settings = place.site.path / "site.toml"

    def copies():
        [finding] = [finding for finding in examine_site(place.path) if finding.about == "copies"]
        return finding

    assert copies().state is State.BAD and "the anchors 'anchors' (`anchors`)" in copies().said
    settings.write_text(settings.read_text() + f'anchors = "{tmp_path / "anchors"}"\n')
    assert copies().state is State.GOOD and copies().said.startswith("found, ") and copies().said.endswith(": model.anchors")
    file = tmp_path / "anchors" / "store.json"
    file.write_text(file.read_text().replace('"public": true', '"public": false'))
    assert copies().state is State.BAD and "norm-anchors-private" in copies().said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": -1.0}, "budget"),
        ({"delta": 2.0}, "delta"),
        ({"declared": 1}, "--declared"),
        ({"device": "gpu"}, "device"),
        *(({"proxy": proxy}, "site-proxy") for proxy in ("proxy:1", "http://", "http://p:x", "http://p:0", "http://p:1\n")),
    ],
)
def test_settings_that_cannot_be_leave_nothing_behind(invited, tmp_path, settings, said):
    office, done, _ = invited
    with pytest.raises(UserError, match=said):
        SitePaths.set_up(done.kits["south"], tmp_path / "new", done.fingerprint, office.store("south"), **settings)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budget=3", "write --budget instead. [option-site-own]"),
        ("store=x", "write --store instead. [option-site-own]"),
        ("name=west", "[option-site-name]"),
        ("weight=x", "did you mean 'weights'? [option-site-unknown]"),
        ("weights=", "[option-site-empty]"),
        ("device", "[option-site-empty]"),
        ("device=cuda", "[option-site-twice]"),
    ],
)
def test_a_set_that_sets_nothing_is_refused(invited, tmp_path, dpfed, text, said):
    office, done, _ = invited
    place = ("--coordinator", done.fingerprint, "--store", office.store("south"), "--into", tmp_path / "new")
    code, _, error = dpfed("site", "setup", done.kits["south"], *place, "--set", "device=cpu", "--set", text)
    assert code == 2 and error.endswith(f"{said}\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("copy", "said"), [("public", "no record store"), ("start", "nothing at")])
def test_a_missing_store_or_copy_is_refused_before_unpacking(office, copy, said):
    done = office.provision()
    place, store = office.folder / "elsewhere", office.store("north")
    for wrong, named, settings in ((office.folder / "nowhere", "no record store at", {}), (store, said, {copy: "nowhere"})):
        with pytest.raises(UserError, match=named):
            SitePaths.set_up(done.kits["north"], place, done.fingerprint, wrong, **settings)
        assert not place.exists()
