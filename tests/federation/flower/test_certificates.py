"""Certificates hold in a real TLS handshake; keys are what Flower and OpenSSH read."""

import shutil
import socket
import ssl
import stat
import threading

import pytest

from dpfed.errors import UserError
from dpfed.federation.provisioning.certificates import make_certificates, make_node_key
from tests.patience import at_most


def handshake(folder, host, authority=None):
    """The peer's certificate as a client sees it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=(authority or folder) / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def accept():
        with ours:
            try:
                server.wrap_socket(ours, server_side=True).close()
            except (ssl.SSLError, OSError):
                pass

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with theirs, client.wrap_socket(theirs, server_hostname=host) as tls:
            return tls.getpeercert()
    finally:
        thread.join(at_most(10))


def test_a_client_that_knows_the_authority_trusts_the_server(tmp_path):
    make_certificates(tmp_path, ["superlink.example.org", "127.0.0.1", "::1"])
    for host in ("superlink.example.org", "127.0.0.1", "::1"):
        assert handshake(tmp_path, host)["issuer"] == ((("commonName", "dpfed federation authority"),),)


def test_another_host_or_authority_is_not_trusted(tmp_path):
    make_certificates(tmp_path / "ours", ["127.0.0.1"])
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(tmp_path / "ours", "127.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer|signature failure"):
        handshake(tmp_path / "ours", "127.0.0.1", tmp_path / "other")


def test_an_expired_certificate_is_not_trusted(tmp_path):
    make_certificates(tmp_path, ["127.0.0.1"], days=0)
    assert handshake  # valid_after is now: a moment later it has passed
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(tmp_path, "127.0.0.1")


def test_private_keys_are_private_and_nothing_is_overwritten(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    make_node_key(tmp_path, "north")
    for name in ("ca.key", "server.key", "north"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for again in (lambda: make_certificates(tmp_path, ["localhost"]), lambda: make_node_key(tmp_path, "north")):
        with pytest.raises(UserError, match="certificate-exists"):
            again()
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_server_certificate_is_renewed_by_the_same_authority(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    authority, old = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.pem").read_bytes()
    for name in ("server.pem", "server.key"):
        (tmp_path / name).unlink()
    make_certificates(tmp_path, ["localhost"])
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != old
    assert handshake(tmp_path, "localhost")


def test_the_key_of_another_authority_signs_nothing(tmp_path):
    make_certificates(tmp_path / "a", ["localhost"])
    make_certificates(tmp_path / "b", ["localhost"])
    (tmp_path / "a" / "server.pem").unlink()  # as for a renewal
    shutil.copy(tmp_path / "b" / "ca.key", tmp_path / "a" / "ca.key")
    with pytest.raises(UserError, match="ca.key does not belong to the certificate.*certificate-other-key"):
        make_certificates(tmp_path / "a", ["localhost"])
    assert not (tmp_path / "a" / "server.pem").exists()


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "server.key"])
@pytest.mark.parametrize("content", [b"", b"damaged", b"\xff\xfe", "half"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    make_certificates(tmp_path, ["localhost"])
    (tmp_path / "server.pem").unlink()  # as for a renewal
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if content == "half" else content)
    with pytest.raises(UserError, match=rf"{name} does not contain a .*\[certificate-(key|format)\]"):
        make_certificates(tmp_path, ["localhost"])
    assert not (tmp_path / "server.pem").exists()
