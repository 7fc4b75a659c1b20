"""The operators' guide: its commands make a federation that answers, and print what it shows."""

import contextlib
import io
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import tomli_w

from dpfed.cli import app
from dpfed.data.store.division import EVALUATION, divide_store, site_folder
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.protocol.cards import SiteCard
from dpfed.federation.protocol.fixed_point import encoded
from dpfed.federation.protocol.messages import sign, verify
from dpfed.federation.protocol.terms import Terms
from dpfed.federation.site.local_socket import ask
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import assemble
from dpfed.runs.resolution import resolve
from tests.docs.commands import GUIDE, ROOT, fenced, in_words, parsed

NAMES = ("north", "south", "west")
PLAN = {
    "name": "tiny",
    "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
    "bounding": {"group_size": 4, "engine": "loop"},
    "privacy": {"epsilon": 8.0, "batch": 60, "steps": 6, "accountant": "rdp"},
}


def command(*start):
    """The command of the guide that begins so; where several do, the shortest."""
    return min((words for words in in_words(fenced(GUIDE)) if tuple(words[: len(start)]) == start), key=len)


def printed(*start):
    """What the guide shows below that command."""
    line = re.escape(" ".join(start))
    return re.search(rf"^```sh\n{line}[^\n]*\n```\n\n```\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)[1]


def labels(text):
    """The names at the left of what a command prints."""
    return re.findall(r"^ +([a-z][a-z ]*?)  \S", text, re.MULTILINE)


def test_what_keeps_a_site_and_the_control_interface_safe_is_in_the_commands():
    node = parsed(command("dpfed", "site", "supernode"))
    assert node["isolation"] == "process" and not node["insecure"] and node["host"] == "127.0.0.1"
    resident = parsed(command("dpfed", "site", "app"))
    assert str(resident["superexec_auth_secret_file"]) == node["superexec_auth_secret_file"]
    assert resident["runtime_api_address"] == f"{node['host']}:{node['port']}"
    link = parsed(command("flower-superlink"))
    assert link["enable_supernode_auth"] and link["host"] == "127.0.0.1" and not link["insecure"]
    assert link["database"] == ":flwr-in-memory:"
    recipe = (ROOT / "server" / "fleet_only.conf").read_text()
    assert f"server 127.0.0.1:{link['port']};" in recipe
    assert f"listen {node['superlink'].split(':')[1]} ssl;" in recipe
    shells = re.findall(r"^export .*$", GUIDE, re.MULTILINE)
    assert len(shells) == 3 and all("FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1" in line for line in shells)


def carry_out(words, folder):
    """Runs one of the project's own commands in a folder; what it prints."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as output, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO("y\n"))
        app(words[1:], standalone_mode=False)
    return output.getvalue()


def as_site(words, name):
    return [re.sub(r"\bnorth\b", name, word) for word in words]


@pytest.fixture(scope="module")
def parties(shapes):
    """Folders of three sites and a coordinator, after the commands with which a federation begins; and what those printed."""
    folder = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))  # a socket's path must be short
    coordinator, output = folder / "coordinator", {}
    (coordinator / "cards").mkdir(parents=True)
    divide_store(shapes.path, folder / "stores", len(NAMES), 0.8)
    for number, name in enumerate(NAMES):
        (folder / name).mkdir()
        (folder / "stores" / site_folder(number)).rename(folder / name / "records")
        output["create"] = carry_out(as_site(command("dpfed", "site", "create"), name), folder / name)
        shutil.copy(folder / name / "site" / "card.json", coordinator / "cards" / f"{name}.json")
    tree = {"data": {"source": "store", "path": str(folder / "stores" / EVALUATION), "size": 16}, **PLAN}
    (coordinator / "plan.toml").write_text(tomli_w.dumps(tree))
    carry_out(command("dpfed", "federation", "create"), coordinator)
    cards = {name: SiteCard.load(coordinator / "cards" / f"{name}.json").fingerprint for name in NAMES}
    for name in reversed(NAMES):  # the guide's is the last one
        heard = [card for other, card in cards.items() if other != name]
        output["confirm"] = carry_out([*command("dpfed", "site", "confirm")[:4], *heard], folder / name)
        shutil.copy(coordinator / "federation" / "terms.json", folder / name)
        output["join"] = carry_out(as_site(command("dpfed", "site", "join"), name), folder / name)
    yield folder, output
    shutil.rmtree(folder)


def test_the_commands_print_what_the_guide_shows(parties):
    folder, output = parties
    fingerprint = r"(?:[0-9a-f]{4} ){7}[0-9a-f]{4}"
    shown = printed("dpfed", "site", "create").replace("/srv/dpfed", str(folder / "west"))
    assert re.sub(fingerprint, "", output["create"]) == re.sub(fingerprint, "", shown)
    assert output["confirm"] == printed("dpfed", "site", "confirm")
    changing = re.compile(rf"{fingerprint}|[0-9a-f]{{32}}|epsilon [\d.]+|[\d.]+e-\d+|sigma = [\d.]+|\d+ records")
    lines = (changing.sub("", text).strip().splitlines() for text in (output["join"], printed("dpfed", "site", "join")))
    for line, shown in zip(*lines, strict=True):  # the guide leaves out the ends of long lines
        assert line == shown or (shown.endswith("...") and line.startswith(shown.removesuffix("...")))


def test_a_site_that_is_served_answers_its_coordinator_and_pays(parties):
    folder, _ = parties
    site, coordinator = folder / "north" / "site", CoordinatorFolder.open(folder / "coordinator" / "federation")
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask_for_a_step(site, coordinator)))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        asking.start()
        output = carry_out(command("dpfed", "site", "serve"), folder / "north")
    finally:
        asking.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    time = r"\d\d:\d\d:\d\d"
    assert re.fullmatch(rf"{time} images are scaled from the store.s squares of 32 pixels to 16 .*\n{time} ready\n", output)
    assert answers == ["sum"]
    status = carry_out(command("dpfed", "site", "status"), folder / "north")
    assert labels(status) == labels(printed("dpfed", "site", "status"))
    assert "1 of 6" in status


def ask_for_a_step(site, coordinator):
    """What a served site answers to its coordinator's first step; ends the service."""
    try:
        terms, door = Terms.load(coordinator.terms), site / "door" / "socket"
        model = assemble(resolve(coordinator.config()), Randomness.from_seed(1), terms=terms).model
        content = encoded(TrainableVector(model).gather())
        deadline = time.monotonic() + 60
        while not door.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        reply = ask(door, sign(coordinator.identity(), terms.fingerprint, "step", content, step=0), 60)
        return verify(reply, terms.sites[0].signing_key, terms.fingerprint)["kind"]
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_files_are_those_of_the_table_with_their_permissions(parties):
    folder, _ = parties
    coordinator, north = folder / "coordinator", folder / "north"
    for where, place in (("certificates", coordinator), ("keys", north)):
        carry_out(command("dpfed", "federation", "certificates", where), place)
    rows = re.findall(r"^\| `([\w/.]+)` \| (site|coordinator) \| (0\d+) \|", GUIDE, re.MULTILINE)
    assert len(rows) == 17
    for path, whose, mode in rows:
        if path == "keys/runtime.secret":  # made by the shell, under umask 077
            continue
        file = (north if whose == "site" else coordinator) / path
        assert stat.S_IMODE(file.stat().st_mode) == int(mode, 8), path
    listed = {path for path, *_ in rows}
    for owner, folder in ((north, "site"), (north, "keys"), (coordinator, "federation"), (coordinator, "certificates")):
        assert stat.S_IMODE((owner / folder).stat().st_mode) == 0o700
        made = {f"{folder}/{file.name}" for file in (owner / folder).iterdir() if file.is_file() and file.name != ".lock"}
        assert made <= listed, made - listed
