"""Who may see the page, and what is refused before a port opens."""

import pytest

from dpfed.errors import UserError
from dpfed.live.access import Access


def access(**given):
    return Access.of(**({"port": 0, "token_file": None} | given))


def test_tokens_are_new_or_of_a_file_that_nobody_else_reads(tmp_path):
    assert access().token != access().token
    file = tmp_path / "token"
    file.write_text("a" * 32 + "\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="watch-token-shared"):
        access(token_file=file)
    file.chmod(0o600)
    assert access(token_file=file).token == "a" * 32
    for text in ("short", "", "ü" * 40, "a b" * 20):
        file.write_text(text)
        with pytest.raises(UserError, match="watch-token-wrong"):
            access(token_file=file)
    with pytest.raises(UserError, match="watch-token-unreadable"):
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
