"""A kit is taken as its coordinator signed it, or not at all."""

import json
import tempfile
from pathlib import Path

import pytest

from dpfed.errors import UserError
from dpfed.federation.provisioning.certificates import AUTHORITY, make_certificates
from dpfed.federation.provisioning.kits import Kit
from dpfed.protocol.identity import Identity

KEY = Identity(bytes(32))


def an_authority():
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder), ["h"])
        return (Path(folder) / AUTHORITY).read_bytes().hex()


KIT = Kit(
    federation="chest",
    site="north",
    serial=3,
    coordinator=KEY.signing_key,
    invitation="0" * 32,
    superlink="h:1",
    authority=an_authority(),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chest-north.kit.json"


def test_what_was_signed_is_read(path):
    path.write_text(KIT.signed(KEY))
    assert Kit.load(path) == KIT


@pytest.mark.parametrize(
    "change", [{"site": "south"}, {"superlink": "h:2"}, {"authority": an_authority()}, {"serial": 4}, {"invitation": "1" * 32}]
)
def test_whatever_is_altered_is_noticed(path, change):
    altered = KIT.model_copy(update=change).model_dump_json(exclude_none=True)
    path.write_text(json.dumps({**json.loads(KIT.signed(KEY)), "content": altered}))
    with pytest.raises(UserError, match="kit-altered"):
        Kit.load(path)


def test_the_signature_of_another_key_does_not_help(path):
    path.write_text(KIT.signed(Identity(bytes([1]) * 32)))
    with pytest.raises(UserError, match="kit-altered"):
        Kit.load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("superlink", text) for text in ("h", "", ":1", "h:", "h:0", "h:65536", "h:x", "[::1", "::1:1", "h:1\n", "h:\u0661")),
        ("superlink", "h; touch x #:1 --insecure"),
        ("superlink", "h:1\u202e"),
        ("release", "1\x1b[2J"),
        ("release", "1; touch x"),
        ("authority", "cafe"),
    ],
)
def test_what_units_commands_or_terminals_misread_is_refused(path, name, value):
    path.write_text(KIT.model_copy(update={name: value}).signed(KEY))
    with pytest.raises(UserError, match="kit-file"):
        Kit.load(path)


@pytest.mark.parametrize("superlink", ["127.0.0.1:9443", "[2001:db8::1]:9443", "a.example.org:65535"])
def test_where_a_coordinator_may_be(path, superlink):
    path.write_text(KIT.model_copy(update={"superlink": superlink}).signed(KEY))
    assert Kit.load(path).superlink == superlink


@pytest.mark.parametrize("before", ['"site":"south",', '"site":"\ud800",', '"terms":{"y":1,"y":2},'], ids=ascii)
def test_doubled_names_and_halves_of_characters_are_refused(path, before):
    content = "{" + before + KIT.model_dump_json(exclude_none=True)[1:]
    sealed = {"signature": KEY.sign(b"dpfed kit 1\0" + content.encode("utf-8", "surrogatepass")).hex(), "content": content}
    path.write_text(json.dumps(sealed))
    with pytest.raises(UserError, match="kit-file"):
        Kit.load(path)
    path.write_text('{"content": "", ' + KIT.signed(KEY)[1:])
    with pytest.raises(UserError, match="kit-file"):
        Kit.load(path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", "[" * 100_000]
    + ['{"content": 1}', '{"content": "{}", "signature": "00"}', '{"content": "[]", "signature": ""}'],
)
def test_what_is_no_kit_gets_a_sentence(path, content):
    path.write_text(content)
    with pytest.raises(UserError, match="kit-file"):
        Kit.load(path)
