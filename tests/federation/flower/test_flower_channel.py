"""The channel over a real SuperLink and real SuperNodes, with TLS and node authentication; echo sites behind them."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from dpfed.federation.demo.loopback import SUPERLINK, free_ports, loopback  # noqa: E402
from dpfed.federation.flower.command import CONNECTION, FlowerCommand, Unavailable  # noqa: E402
from dpfed.federation.provisioning.services import coordinator_files  # noqa: E402
from dpfed.protocol.messages import Packet  # noqa: E402
from tests.federation.flower.sites import Sites  # noqa: E402
from tests.patience import Patience, at_most, until  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SECRET = "patient 4711"
FIRST = 60.0  # seconds for an exchange in which nothing should hang
SLACK = 2.0  # seconds by which a busy machine may miss a deadline

pytestmark = pytest.mark.slow


class Driver:
    """A running ServerApp's channel, driven from the test. Remembers every answer that came."""

    def __init__(self, connection):
        self._connection, self.answers = connection, []

    def sites(self):
        self._connection.send(("sites", ()))
        return self._connection.recv()

    def exchange(self, packets, seconds):
        """Answers by address, and seconds after which each came; the key ``None``: after which the exchange ended."""
        start = time.monotonic()
        self._connection.send(("exchange", (packets, seconds)))
        answers, times = {}, {}
        while (answer := self._connection.recv()) is not None:
            answers[answer[0]], times[answer[0]] = answer[1], time.monotonic() - start
        self.answers.append(answers)
        times[None] = time.monotonic() - start
        return answers, times

    def end(self):
        self._connection.send(None)


@contextmanager
def driving(federation, folder):
    """A run of the echo app, and its driver."""
    with Listener(str(folder / "test")) as listener:
        federation.submit(ROOT / "tests" / "federation" / "flower" / "echo_app", {"socket": str(folder / "test")})
        listener._listener._socket.settimeout(at_most(60))
        with listener.accept() as connection:
            driver = Driver(connection)
            yield driver
            driver.end()
            assert federation.members.wait("run", at_most(60)) == 0
    assert [run["status"] for run in federation.flwr.facts("list", CONNECTION)["runs"]] == ["finished:completed"]


@pytest.fixture(scope="module")
def everything():
    """Sites, federation and driver; a and b and c are the addresses of the sites."""
    folder = Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp"))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    try:
        with Sites("abc") as sites, loopback(folder / "federation", sites.sockets) as federation:
            with driving(federation, folder) as driver:
                yield sites, federation, driver, whose(sites, driver)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
        shutil.rmtree(folder, ignore_errors=True)


def whose(sites, driver):
    """Address of each site: nobody but the site knows which it is."""
    for name in sites.sockets:
        sites.handle[name] = lambda packet, name=name: Packet(name.encode(), b"")
    until(lambda: len(driver.sites()) == len(sites.sockets), FIRST, pause=0.2)
    answers, _ = driver.exchange({address: Packet(b"who?", b"") for address in driver.sites()}, FIRST)
    sites.handle.clear()
    return {answer.header.decode(): address for address, answer in answers.items()}


def test_45_megabytes_come_back_intact(everything):
    _, _, driver, at = everything
    vector = os.urandom(45_000_000)
    packets = {at[name]: Packet(name.encode(), b"signature", vector) for name in "abc"}
    answers, _ = driver.exchange(packets, FIRST)
    assert answers == packets


def test_a_site_that_is_down_hangs_or_fails_delays_nobody(everything):
    sites, _, driver, at = everything
    sites.stop("a")
    woken = threading.Event()
    sites.handle["b"] = lambda packet: (woken.wait(at_most(60)), packet)[1]
    answers, times = driver.exchange({at[name]: Packet(b"first", b"") for name in "abc"}, 15)
    assert answers == {at["a"]: None, at["c"]: Packet(b"first", b"")}  # nothing of b
    assert max(times[at["a"]], times[at["c"]]) < 13
    assert times[None] < 15 + SLACK

    woken.set()  # b's reply to the first exchange is late: nothing of it in the next one
    sites.start("a")
    sites.handle["b"] = lambda packet: Packet(b"b says " + packet.header, b"")
    answers, _ = driver.exchange({at[name]: Packet(b"second", b"") for name in "abc"}, FIRST)
    assert answers == {at["a"]: Packet(b"second", b""), at["b"]: Packet(b"b says second", b""), at["c"]: Packet(b"second", b"")}
    sites.handle.clear()


def test_a_supernode_that_is_killed_delays_nobody_and_comes_back(everything):
    sites, federation, driver, at = everything
    asked = threading.Event()

    def hold(packet):
        asked.set()
        time.sleep(3)
        return packet

    def kill():
        asked.wait(at_most(60))
        federation.members.kill("a")

    sites.handle["a"] = hold
    killer = threading.Thread(target=kill)
    killer.start()
    answers, times = driver.exchange({at[name]: Packet(b"q", b"") for name in "abc"}, 20)
    killer.join()
    assert answers.pop(at["a"], None) is None
    assert answers == {at["b"]: Packet(b"q", b""), at["c"]: Packet(b"q", b"")}
    assert max(times[at["b"]], times[at["c"]]) < 18
    assert times[None] < 20 + SLACK

    sites.handle.clear()
    federation.start_node("a")
    federation.wait_for_node("a")
    answers, _ = driver.exchange({at["a"]: Packet(b"again", b"", b"v")}, FIRST)
    assert answers == {at["a"]: Packet(b"again", b"", b"v")}


def test_a_failure_at_a_site_stays_there(everything):
    sites, federation, driver, at = everything

    def fail(packet):
        raise ValueError(SECRET)

    sites.handle["b"] = fail
    answers, _ = driver.exchange({at["b"]: Packet(b"q", b"")}, FIRST)
    sites.handle.clear()
    assert answers == {at["b"]: None}
    federation.members.wait_for("run", "(internal)", at_most(60))  # the one word that leaves a site
    beyond = "".join(federation.members.log(name).read_text(errors="replace") for name in (SUPERLINK, "run"))
    for private in (SECRET, "ValueError", "Traceback", *map(str, sites.sockets.values())):
        assert private not in beyond


def test_whoever_has_no_registered_key_gets_nothing(everything, tmp_path):
    from dpfed.federation.provisioning.certificates import make_node_key

    _, federation, driver, _ = everything
    make_node_key(tmp_path, "stranger")
    command = ["flower-supernode", "--root-certificates", federation.certificates / "ca.crt"]
    command += ["--superlink", f"127.0.0.1:{federation.port}", "--host", "127.0.0.1", "--port", free_ports(1)[0]]
    command += ["--auth-supernode-private-key", tmp_path / "stranger"]
    before = driver.sites()
    federation.members.start("stranger", command, {"FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"})
    try:
        assert federation.members.wait("stranger", 60) != 0
    except subprocess.TimeoutExpired:
        assert "SuperNode ID" not in federation.members.text("stranger")
    finally:
        federation.members.kill("stranger")
    assert driver.sites() == before


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_the_proxy_lets_supernodes_through_and_nobody_else(everything, tmp_path):
    _, federation, driver, at = everything
    port = free_ports(1)[0]
    with proxied(federation, port, tmp_path):
        federation.members.stop("c")
        federation.start_node("c", port)
        federation.wait_for_node("c")
        packet = Packet(b"through the proxy", b"", os.urandom(12_000_000))
        assert driver.exchange({at["c"]: packet}, FIRST)[0] == {at["c"]: packet}

        through = FlowerCommand(tmp_path / "flower", port, federation.certificates / "ca.crt")
        app = ROOT / "tests" / "federation" / "flower" / "echo_app"
        key = federation.certificates / "c.pub"
        for command in (("list",), ("supernode", "list"), ("supernode", "register", str(key)), ("run", str(app))):
            with pytest.raises(Unavailable):
                through.text(*command, CONNECTION)
            if command[-1] == "list":
                federation.flwr.text(*command, CONNECTION)
        for path in (
            "/v1/control/list-runs",
            "/v1/fleet/../control/list-runs",
            "/v1/fleet/..%2fcontrol/list-runs",
            "/v1/fleet//../control/list-runs",
            "/v1/runtime/acquire-task",
            "/docs",
            "/openapi.json",
            "/",
        ):
            assert status(port, path, federation.certificates / "ca.crt") == 404, path
    federation.members.stop("c")
    federation.start_node("c")
    federation.wait_for_node("c")


@contextmanager
def proxied(federation, port, folder):
    """The kit's proxy with this federation's port and certificates, in a real nginx."""
    recipe = coordinator_files("demo", str(folder), "localhost", port)["proxy.conf"]
    recipe = recipe.replace(f"listen {port}", f"listen 127.0.0.1:{port}").replace(
        "127.0.0.1:8100", f"127.0.0.1:{federation.port}"
    )
    (folder / "certificates" / "inner").mkdir(parents=True)
    for name, source in {"server.pem": "server.pem", "server.key": "server.key", "inner/ca.crt": "ca.crt"}.items():
        shutil.copy(federation.certificates / source, folder / "certificates" / name)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file = folder / "nginx.conf"
    file.write_text(f"pid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\nhttp {{\n{temporary}{recipe}}}\n")
    folder.chmod(0o755)
    federation.members.start("nginx", ["nginx", "-c", file, "-e", folder / "error.log", "-g", "daemon off; user root;"])
    patience = Patience(20)
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", port)) and not patience.ended:
            assert federation.members.running("nginx"), federation.members.text("nginx")
            time.sleep(0.05)
    try:
        yield
    finally:
        federation.members.stop("nginx")


def status(port, path, authority):
    """HTTP status of a POST with exactly this path."""
    import ssl

    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        tls.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        return int(re.match(rb"HTTP/1.1 (\d+)", tls.recv(100))[1])
