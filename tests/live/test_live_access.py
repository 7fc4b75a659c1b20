"""Who may see the page, and what is refused before a port opens."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpfed.errors import UserError
from dpfed.live.access import Access
from dpfed.live.gathering import Gathering
from dpfed.live.serving import listen


def access(**given):
    defaults = {"host": "127.0.0.1", "port": 0, "token_file": None, "certificate": None, "key": None, "insecure": False}
    return Access.of(**(defaults | given))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])  # noqa: S104
def test_no_port_beyond_this_machine_without_tls_unless_the_word_was_typed(host):
    with pytest.raises(UserError, match="--insecure"):
        access(host=host)
    assert access(host=host, insecure=True).token


@pytest.mark.parametrize(("days", "said"), [((-9, -1), "has expired"), ((5, 9), "in the future")])
def test_a_certificate_out_of_its_time_is_a_sentence(tmp_path, make, days, said):
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    first, last = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=day) for day in days)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, first, last).sign(key, hashes.SHA256())
    (tmp_path / "a.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form, bare = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "b.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, bare))
    (tmp_path / "b.pem").chmod(0o600)
    given = access(certificate=tmp_path / "a.pem", key=tmp_path / "b.pem")
    with pytest.raises(UserError, match=said):
        listen(Gathering(make().path), given, None, lambda address: pytest.fail("a port was opened"))


def test_a_key_that_everybody_reads_is_refused(tmp_path):
    for name in ("a.pem", "b.pem"):
        (tmp_path / name).write_text("x")
    (tmp_path / "b.pem").chmod(0o644)
    with pytest.raises(UserError, match="chmod o="):
        access(certificate=tmp_path / "a.pem", key=tmp_path / "b.pem")


def test_tokens_are_new_each_time_or_of_a_file_that_nobody_else_reads(tmp_path):
    assert access().token != access().token
    file = tmp_path / "token"
    file.write_text("a" * 32 + "\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        access(token_file=file)
    file.chmod(0o600)
    assert access(token_file=file).token == "a" * 32
    for text in ("short", "", "ü" * 40, "a b" * 20):
        file.write_text(text)
        with pytest.raises(UserError, match="no token"):
            access(token_file=file)
    with pytest.raises(UserError, match="cannot read"):
        access(token_file=tmp_path / "none")


def test_a_request_brings_the_token_or_nothing_is_shown():
    one = access()
    assert one.allows(one.token, "", "") and one.allows(None, f"a=b; {one.cookie}={one.token}", "")
    assert one.allows(None, "", f"Bearer {one.token}")
    for query, cookie, bearer in (
        (None, "", ""),
        ("", f"{one.cookie}=", "Bearer "),
        ("x", f"{one.cookie}=x", "Bearer x"),
        ("ü", "ü=ü", "ü"),
    ):
        assert not one.allows(query, cookie, bearer)


@pytest.mark.parametrize(
    ("host", "known"), [("127.0.0.1:80", True), ("localhost", True), ("[::1]:9", True), ("evil.org:80", False)]
)
def test_a_page_of_another_name_is_not_ours(host, known):
    assert access().knows(host) is known
