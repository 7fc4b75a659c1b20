"""A kit is taken as its coordinator signed it, or not at all."""

import gzip
import io
import json
import tarfile

import pytest

from dpfed.errors import UserError
from dpfed.federation.provisioning.kits import MANIFEST, OWN, Kit, read_kit
from dpfed.protocol.identity import Identity

KEY = Identity(bytes(32))
SAID = {
    "federation": "chest",
    "site": "north",
    "serial": 3,
    "invitation": "0" * 32,
    "superlink": "h:1",
    "protocol": 2,
    "release": "1",
}
FILES = {"README.md": b"read me", "ca.crt": b"certificate", "systemd/dpfed-worker@.service": b"[Unit]"}


@pytest.fixture
def kit():
    return Kit.made(KEY, FILES, **SAID)


@pytest.fixture
def archive(kit, tmp_path):
    path = tmp_path / "kit.tar.gz"
    path.write_bytes(kit.archive())
    return path


def packed(path, entries):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_what_was_packed_comes_out_and_the_same_kit_is_the_same_bytes(kit, archive):
    read = read_kit(archive)
    assert read.manifest == kit.manifest and dict(read.files) == dict(kit.files)
    assert Kit.made(KEY, FILES, **SAID).archive() == kit.archive()


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_file_that_was_altered_is_named(kit, name, tmp_path):
    files = {f"chest-north/{path}": content for path, content in kit.files.items()}
    changed = files[f"chest-north/{name}"]
    changed = changed.replace(b"h:1", b"h:2") if name == MANIFEST else changed + b"!"
    path = packed(tmp_path / "k.tar.gz", {**files, f"chest-north/{name}": changed})
    with pytest.raises(UserError, match=f"{name} was altered"):
        read_kit(path)


def test_a_file_that_is_missing_is_named_and_one_too_many_is_left_out(kit, tmp_path):
    files = {f"chest-north/{path}": content for path, content in kit.files.items()}
    less = {name: content for name, content in files.items() if not name.endswith("ca.crt")}
    with pytest.raises(UserError, match=r"ca\.crt is missing"):
        read_kit(packed(tmp_path / "less.tar.gz", less))
    more = read_kit(packed(tmp_path / "more.tar.gz", {**files, "chest-north/site/identity.key": b"k"}))
    assert "site/identity.key" not in more.files


def test_the_signature_of_another_key_does_not_help(kit, tmp_path):
    outer = json.loads(kit.files[MANIFEST])
    outer["signature"] = json.loads(Kit.made(Identity(bytes([1]) * 32), FILES, **SAID).files[MANIFEST])["signature"]
    files = {**kit.files, MANIFEST: json.dumps(outer).encode()}
    with pytest.raises(UserError, match=r"kit\.json was altered"):
        read_kit(packed(tmp_path / "k.tar.gz", {f"chest-north/{path}": content for path, content in files.items()}))


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "a/../../b", "a/b/c", ".env", *(f"{own}/x" for own in OWN), "kit.json"]
)
def test_no_kit_names_a_file_outside_of_it_or_one_that_a_site_makes(name):
    with pytest.raises(UserError, match="do not use it"):
        Kit.made(KEY, {name: b""}, **SAID)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no starter kit"),
        (b"nonsense", r"no \.tar\.gz"),
        (gzip.compress(b"nonsense"), "no starter kit"),
        (gzip.compress(bytes(64 << 20)), "more than 32 MB"),
    ],
    ids=["empty", "nonsense", "no tar", "bomb"],
)
def test_what_is_no_kit_gets_a_sentence(content, said, tmp_path):
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_kit(tmp_path / "k")


def test_links_in_an_archive_are_refused(tmp_path):
    with tarfile.open(tmp_path / "k", "w:gz") as tar:
        link = tarfile.TarInfo("chest-north/kit.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(UserError, match="it holds 'chest-north/kit.json'"):
        read_kit(tmp_path / "k")


@pytest.mark.parametrize("content", ["{", "[]", '{"kit": 1}', '{"kit": "{}", "signature": "00"}', "[" * 100_000])
def test_a_damaged_manifest_gets_a_sentence(content, tmp_path):
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(UserError, match="damaged|describes no kit"):
        read_kit(tmp_path)
