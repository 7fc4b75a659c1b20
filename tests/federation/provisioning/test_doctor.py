"""The doctor finds what is wrong, says what to do, and changes nothing."""

import datetime
import email.utils
import json
import socket
import ssl
import threading
import time

import pytest

from dpfed.errors import UserError
from dpfed.federation.provisioning import network
from dpfed.federation.provisioning.certificates import make_certificates
from dpfed.federation.provisioning.doctor import examine_site
from dpfed.federation.provisioning.network import State
from tests.federation.provisioning.office import Office

pytest.importorskip("httpx")


@pytest.fixture(scope="module")
def office(shapes, tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Office(tmp_path_factory.mktemp("doctor"), shapes.path, port=port)


@pytest.fixture(scope="module")
def place(office):
    return office.joined()["north"]


class Server:
    """HTTPS on loopback, with a clock that a test may set.

    Attributes:
        away: seconds by which its clock is ahead.
    """

    def __init__(self, folder, port):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._listener = socket.create_server(("127.0.0.1", port))
        self.away = 0
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            with plain:
                try:
                    with self._context.wrap_socket(plain, server_side=True) as tls:
                        tls.recv(4096)
                        when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.away)
                        date = email.utils.format_datetime(when, usegmt=True)
                        tls.sendall(
                            f"HTTP/1.1 404 Not Found\r\nDate: {date}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
                        )
                except (OSError, ssl.SSLError):
                    pass

    def close(self):
        self._listener.close()


@pytest.fixture(scope="module")
def server(office, place):
    server = Server(office.folder / "chest" / "certificates", int(place.kit.superlink.rpartition(":")[2]))
    yield server
    server.close()


def of(findings, about):
    """The worst finding about something."""
    order = list(State)
    return max((finding for finding in findings if finding.about == about), key=lambda finding: order.index(finding.state))


def test_a_healthy_site_has_nothing_that_is_bad(place, server):
    findings = examine_site(place.path)
    assert [finding for finding in findings if finding.state is State.BAD] == []
    assert {"kit", "versions", "keys", "certificate", "coordinator", "clock", "ports", "door", "store", "terms", "budget"} == {
        finding.about for finding in findings
    }
    assert all(finding.advice for finding in findings if finding.state is not State.GOOD)
    assert "certificate is valid until" in of(findings, "coordinator").said
    assert "0 of 6 steps" in of(findings, "budget").said


@pytest.mark.parametrize(("seconds", "word"), [(600, "behind"), (-600, "ahead"), (-7, "ahead")])  # Flower: -305 to 5 s
def test_a_wrong_clock_is_noticed(place, server, seconds, word):
    server.away = seconds
    try:
        finding = of(examine_site(place.path), "clock")
    finally:
        server.away = 0
    assert finding.state is State.BAD and word in finding.said and "NTP" in finding.advice


@pytest.mark.parametrize(
    ("days", "hosts", "authority", "said"),
    [
        (0, ["localhost"], "own", "has expired"),
        (365, ["elsewhere.example.org"], "own", "for another name"),
        (365, ["localhost"], "other", "not signed by the authority"),
    ],
    ids=["expired", "name", "authority"],
)
def test_a_wrong_certificate_of_the_coordinator_is_noticed(tmp_path, days, hosts, authority, said):
    make_certificates(tmp_path / "own", hosts, days)
    make_certificates(tmp_path / "other", ["localhost"])
    server = Server(tmp_path / "own", 0)
    try:
        finding = next(network.of_connection(f"localhost:{server.port}", tmp_path / authority / "ca.crt", {}))
    finally:
        server.close()
    assert finding.state is State.BAD and said in finding.said and finding.advice


def test_an_absent_coordinator_and_an_absent_proxy(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    finding = next(network.of_connection("localhost:9", tmp_path / "ca.crt", {}))
    assert finding.state is State.BAD and "NETWORK.md" in finding.advice
    damaged = tmp_path / "damaged.crt"
    damaged.write_text("no certificate")
    for authority, said in ((tmp_path / "none" / "ca.crt", "is missing"), (damaged, "cannot be read")):
        (finding,) = network.of_connection("localhost:9", authority, {})
        assert finding.state is State.BAD and f"{authority}, which verifies" in finding.said and said in finding.said
        assert authority.name in finding.advice and "connections" not in finding.advice
    proxied = next(network.of_connection("localhost:9", tmp_path / "ca.crt", {"HTTPS_PROXY": "http://me:secret@127.0.0.1:9"}))
    direct = next(
        network.of_connection("localhost:9", tmp_path / "ca.crt", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "x, localhost"})
    )
    assert "through" not in direct.said
    for odd in ("http://proxy:abc", "socks5://proxy:1", "proxy:3128"):
        (finding,) = network.of_connection("localhost:9", tmp_path / "ca.crt", {"HTTPS_PROXY": odd})
        assert finding.state is State.BAD and odd in finding.said and "HTTPS_PROXY in .env" in finding.advice
    assert "through http://127.0.0.1:9" in proxied.said and "secret" not in proxied.said


def test_a_date_without_a_zone_is_one():
    (finding,) = network.of_clock(time.strftime("%a, %d %b %Y %H:%M:%S -0000", time.gmtime()))
    assert finding.state is State.GOOD


@pytest.mark.parametrize(("days", "state"), [(0, State.BAD), (30, State.CARE), (365, State.GOOD)])
def test_dates_of_certificates(tmp_path, days, state):
    make_certificates(tmp_path, ["localhost"], days)
    finding = next(network.of_certificate(tmp_path / "server.pem", "renew it"))
    assert finding.state is state and (finding.advice == "renew it") == (state is not State.GOOD)


def test_what_is_altered_missing_or_open_is_noticed(tmp_path, shapes):
    (tmp_path / "second").mkdir()
    place = Office(tmp_path / "second", shapes.path).joined()["south"]
    kit = place.path / "kit.json"
    kit.write_text(kit.read_text().replace("localhost", "elsewhere"))
    with pytest.raises(UserError, match="kit-altered"):
        examine_site(place.path)
    kit.write_text(kit.read_text().replace("elsewhere", "localhost"))
    place.site.path.chmod(0o755)
    (place.site.path / "ledger.jsonl").write_text("nonsense\n")
    place.settings.write_text(place.settings.read_text().replace("9200", "none"))
    findings = examine_site(place.path)
    for about, said in (("keys", "other users"), ("budget", "ledger"), ("ports", "'none'")):
        assert of(findings, about).state is State.BAD and said in of(findings, about).said, about
    (place.site.path / "ledger.jsonl").unlink()
    place.leave()
    assert "has left" in of(examine_site(place.path), "terms").said


def test_the_command_ends_with_1_where_something_is_bad(place, server, dpfed):
    before = {path: path.read_bytes() for path in place.path.rglob("*") if path.is_file()}
    code, output, _ = dpfed("site", "doctor", place.path)
    assert code == 0 and "-> start node and app" in output
    (place.site.path / "identity.key").chmod(0o644)
    try:
        code, output, _ = dpfed("site", "doctor", place.path, "--json")
    finally:
        (place.site.path / "identity.key").chmod(0o600)
    assert code == 1 and [one["about"] for one in json.loads(output) if one["state"] == "bad"] == ["keys"]
    assert before == {path: path.read_bytes() for path in place.path.rglob("*") if path.is_file()}
