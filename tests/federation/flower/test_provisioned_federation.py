"""A federation from its kits: units as processes, over TLS and a proxy; a new certificate and an upgrade lose no step."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr")

from dpfed.federation.demo.loopback import free_ports  # noqa: E402
from dpfed.federation.demo.processes import processes  # noqa: E402
from dpfed.federation.provisioning.doctor import examine_site  # noqa: E402
from dpfed.federation.provisioning.network import State  # noqa: E402
from dpfed.privacy.ledger import Ledger  # noqa: E402
from tests.federation.flower.provisioned import HOST, START, forwarding, start_site, start_unit  # noqa: E402
from tests.federation.provisioning.office import PLAN, Office  # noqa: E402
from tests.patience import until  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
STEPS = 5000  # more than the test waits for
LATER = 6  # steps after which a change has been lived through

pytestmark = pytest.mark.slow


def wait_until(done, what, seconds=START):
    assert until(done, seconds, pause=0.1), what


@pytest.fixture
def folder(monkeypatch):
    path = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))  # a socket's path must be short
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_an_upgrade_in_mid_run_loses_no_step(folder, shapes):
    port, link, *nodes = free_ports(4)
    office = Office(folder, shapes.path, host=HOST, port=port)
    plan = {**PLAN, "privacy": {**PLAN["privacy"], "steps": STEPS}, "evaluation": {**PLAN["evaluation"], "every": STEPS}}
    data = {"source": "store", "path": str(folder / "stores" / "evaluation"), "size": 16}
    (folder / "plan.toml").write_text(tomli_w.dumps({**plan, "data": data}))
    done, chest = office.provision(), folder / "chest"
    with forwarding(chest, link, port) as forwarder, processes(folder / "logs") as members:
        proxy = f"http://127.0.0.1:{forwarder.outgoing}"
        north = office.set_up("north", done)
        south = office.set_up("south", done, proxy=proxy)
        for place, free in ((north, nodes[0]), (south, nodes[1])):
            place.settings.write_text(place.settings.read_text().replace("DPFED_PORT=9200", f"DPFED_PORT={free}"))
        for place in (north, south):
            office.send(place)
        done = office.provision()
        for place in (north, south):
            place.unpack(done.kits[place.kit.site])
            place.join()
            start_site(members, place, "worker", "node", "app")
        # Nobody waits for anybody: the SuperLink comes last.
        start_unit(members, "superlink", chest / "systemd" / "dpfed-superlink@.service", chest, **{"8100": str(link)})
        members.start("run", ["dpfed", "federation", "run", chest, "--port", link])
        journal = chest / "run" / "federation.jsonl"

        def lines():
            return journal.read_bytes().count(b"\n") if journal.exists() else 0

        def begun():
            for place in (
                north,
                south,
            ):  # a SuperNode that came before it was registered has ended: its unit says Restart=always
                if not members.running(f"{place.kit.site}-node"):
                    start_site(members, place, "node")
            return lines() > 4 or not members.running("run")

        wait_until(begun, "the run did not begin", 240)
        assert members.running("run"), members.text("run")
        assert [finding for finding in examine_site(south.path) if finding.state is State.BAD] == []

        # A new certificate for the server, while all is going on.
        for name in ("server.pem", "server.key"):
            (chest / "certificates" / name).unlink()
        office.provision()
        forwarder.reload()

        # South's worker is stopped and started.
        members.stop("south-worker")
        start_site(members, south, "worker")
        members.wait_for("south-worker", "ready", START)
        last = lines()
        wait_until(lambda: lines() > last + 2 * LATER, "the run does not go on")
        seen = [json.loads(line) for line in journal.read_text().splitlines()[: last + 2 * LATER]]
        assert members.running("run"), members.text("run")

        # North leaves: its SuperNode is shown out, and the run goes on with south.
        members.stop("north-worker")
        north.leave()
        office.send(north)
        assert office.provision().left == ["north"]
        wait_until(lambda: "is unregistered" in members.text("run"), "north's SuperNode is still registered")
        last = lines()
        wait_until(lambda: lines() > last + 2 * LATER, "the run does not go on without north")
        alone = [json.loads(line) for line in journal.read_text().splitlines()[-LATER:]]
        assert ["south"] in [line.get("arrived") for line in alone]
    assert [line for line in seen if line["event"] == "discarded"] == []
    collected = [line for line in seen if line["event"] == "collected"]
    assert len(collected) > LATER and all(line["arrived"] == ["north", "south"] for line in collected)
    for place in (north, south):
        assert Ledger.open(place.site.ledger).charged >= len(collected)
    assert forwarder.asked == {f"CONNECT {HOST}:{port}"}  # south came through its institution's proxy, and for nothing else
