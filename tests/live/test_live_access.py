"""Who may see the page, and what is refused before a port opens."""

import socket

import pytest

from dpfed.errors import UserError
from dpfed.live.access import Access, is_loopback
from dpfed.live.gathering import Gathering
from dpfed.live.serving import listen


def access(**given):
    defaults = {"port": 0, "token_file": None}
    return Access.of(**(defaults | given))


@pytest.mark.parametrize("given", [{"port": -1}, {"port": 65536}])
def test_impossible_ports(given):
    with pytest.raises(UserError, match="--port"):
        access(**given)


def test_a_port_that_is_taken_is_a_sentence(make):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="another program has it"):
            listen(Gathering(make().path), access(port=taken.getsockname()[1]), None, lambda address: None)


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


def test_loopback():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "localhost.evil.org", "10.0.0.1", ""]))  # noqa: S104
