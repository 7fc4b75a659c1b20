"""A kit is taken as its coordinator signed it, or not at all."""

import json

import pytest

from dpfed.errors import UserError
from dpfed.federation.provisioning.kits import Kit
from dpfed.protocol.identity import Identity

KEY = Identity(bytes(32))
KIT = Kit(
    federation="chest",
    site="north",
    serial=3,
    coordinator=KEY.signing_key,
    invitation="0" * 32,
    superlink="h:1",
    authority="cafe",
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chest-north.kit.json"


def test_what_was_signed_is_read(path):
    path.write_text(KIT.signed(KEY))
    assert Kit.load(path) == KIT


@pytest.mark.parametrize("before", ["north", "h:1", "cafe", "3", "0" * 32])
def test_whatever_is_altered_is_noticed(path, before):
    text = KIT.signed(KEY)
    content = json.loads(text)["content"]
    altered = content.replace(before, before[:-1] + "2")
    assert altered != content
    path.write_text(json.dumps({**json.loads(text), "content": altered}))
    with pytest.raises(UserError, match="not as it was signed"):
        Kit.load(path)


def test_the_signature_of_another_key_does_not_help(path):
    path.write_text(KIT.signed(Identity(bytes([1]) * 32)))
    with pytest.raises(UserError, match="not as it was signed"):
        Kit.load(path)


@pytest.mark.parametrize("change", [{"superlink": "h:1\u202e"}, {"release": "1\x1b[2J"}])
def test_what_a_terminal_acts_on_is_refused(path, change):
    path.write_text(KIT.model_copy(update=change).signed(KEY))
    with pytest.raises(UserError, match="is not a starter kit"):
        Kit.load(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        '{"content": 1}',
        '{"content": "{}", "signature": "00"}',
        '{"content": "[]", "signature": ""}',
        "[" * 100_000,
    ],
)
def test_what_is_no_kit_gets_a_sentence(path, content):
    path.write_text(content)
    with pytest.raises(UserError, match="is not a starter kit"):
        Kit.load(path)
