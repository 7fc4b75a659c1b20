"""A starter kit: what the coordinator gives one participant, in one archive that it signed.

A kit is a folder ``FEDERATION-SITE`` with plain files and ``kit.json``: who made it, for which site, and a hash of every file,
signed with the key that later signs the coordinator's questions. It holds no key. The first kit of a site is an invitation; a
later one holds the terms, too, and all that the first one held, so the newest kit is always the whole one.

Nothing that a site makes for itself has a name that a kit uses (`OWN`). So a kit that is unpacked over a site, even by hand,
cannot touch its keys, its settings and its ledger.

What a site answers to its kit: its card, the public key of its SuperNode, and whether it has left; signed by the site.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from pydantic import Field, ValidationError

from dpfed import __version__
from dpfed.config import Section
from dpfed.errors import UserError
from dpfed.federation.provisioning.project import Name
from dpfed.files.reading import open_regular, read_bytes, read_text
from dpfed.protocol.cards import KEY, SiteCard, hidden_text
from dpfed.protocol.identity import Identity, is_signed
from dpfed.protocol.messages import PROTOCOL

MANIFEST, TERMS = "kit.json", "terms.json"
OWN = (".env", ".lock", "site", "keys", "budgets", "door", "flower", "reply.json", "venv")  # made at the site, never in a kit

_DOMAIN = b"dpfed kit 1\0"
_MOST_FILES, _MOST_BYTES = 100, 32 << 20
_PATH = re.compile(r"[A-Za-z0-9][\w.@-]*(/[A-Za-z0-9][\w.@-]*)?")


class Manifest(Section):
    """What ``kit.json`` says, without its signature."""

    format: Literal[1] = 1
    federation: Name
    site: Name
    serial: int = Field(ge=1, description="a kit with a higher one replaces this one")
    coordinator: str = KEY
    invitation: str = Field(pattern="^[0-9a-f]{32}$", description="known to whoever had the kit: names the site in its reply")
    superlink: str = Field(description="where the SuperNode connects to")
    protocol: int
    release: str = Field(description="of dpfed, that the coordinator runs")
    files: dict[str, str] = Field(description="SHA-256 by path")

    @property
    def folder(self) -> str:
        """The folder that the archive unpacks into."""
        return f"{self.federation}-{self.site}"


@dataclass(frozen=True)
class Kit:
    """A kit whose signature and files have been checked.

    Attributes:
        manifest: what it says about itself.
        files: content by path, ``kit.json`` among them.
    """

    manifest: Manifest
    files: Mapping[str, bytes]

    @classmethod
    def made(cls, identity: Identity, files: Mapping[str, bytes], **manifest: object) -> Kit:
        """A new kit.

        Args:
            identity: the coordinator's.
            files: content by path.
            manifest: fields of `Manifest`, without ``coordinator`` and ``files``.
        """
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())}
        said = Manifest.model_validate({**manifest, "coordinator": identity.signing_key, "files": hashes})
        _refuse_paths(said)
        text = said.model_dump_json(indent=1)
        signed = json.dumps({"signature": identity.sign(_DOMAIN + text.encode()).hex(), "kit": text}, indent=1) + "\n"
        return cls(said, {**files, MANIFEST: signed.encode()})

    def archive(self) -> bytes:
        """A ``.tar.gz``, the same bytes for the same kit."""
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
            for path, content in sorted(self.files.items()):
                entry = tarfile.TarInfo(f"{self.manifest.folder}/{path}")
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()


def read_kit(path: Path) -> Kit:
    """A kit from its archive, or from a folder into which somebody unpacked it.

    Raises:
        UserError: if it is none, or is not as the coordinator signed it.
    """
    files = _in_folder(path) if path.is_dir() else _in_archive(path)
    if MANIFEST not in files:
        raise UserError(f"{path} is not a starter kit: it has no {MANIFEST}. `dpfed federation provision` makes kits.")
    manifest = _checked(files[MANIFEST], path)
    for name, digest in manifest.files.items():
        if name not in files:
            raise UserError(f"{path} is not as it was signed: {name} is missing. Ask the coordinator for the kit again.")
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise UserError(f"{path} is not as it was signed: {name} was altered. Ask the coordinator for the kit again.")
    return Kit(manifest, {name: files[name] for name in (*manifest.files, MANIFEST)})


def read_manifest(folder: Path) -> Manifest:
    """What the kit in a folder says about itself, whether or not its other files are as they were.

    Raises:
        UserError: if there is none, or its signature does not fit.
    """
    try:
        return _checked(read_bytes(folder / MANIFEST), folder)
    except OSError as error:
        raise UserError(f"{folder} is not a starter kit: cannot read {MANIFEST} ({error.strerror or error}).") from error


def altered(folder: Path, manifest: Manifest) -> list[str]:
    """The files of an unpacked kit that are missing or not as they were signed."""
    return [
        name
        for name, digest in manifest.files.items()
        if not (folder / name).is_file() or hashlib.sha256(read_bytes(folder / name)).hexdigest() != digest
    ]


def spoken(signing_key: str) -> str:
    """The fingerprint of a key, in groups that can be read out."""
    digest = hashlib.sha256(bytes.fromhex(signing_key)).hexdigest()[:32]
    return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


def is_spoken(text: str, signing_key: str) -> bool:
    """Whether somebody wrote down the fingerprint of a key; spaces, dashes and case do not matter."""
    return re.sub(r"[\s:-]", "", text).lower() == spoken(signing_key).replace(" ", "")


def _checked(content: bytes, path: Path) -> Manifest:
    try:
        outer = json.loads(content)
        text, signature = outer["kit"], bytes.fromhex(outer["signature"])
        if hidden_text(json.loads(text)):
            raise ValueError
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{path / MANIFEST} describes no kit that dpfed knows: a newer dpfed may have made it.") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path / MANIFEST} is damaged: ask the coordinator for the kit again.") from error
    if not is_signed(_DOMAIN + text.encode(), signature, manifest.coordinator):
        raise UserError(f"{path} is not as it was signed: {MANIFEST} was altered. Ask the coordinator for the kit again.")
    _refuse_paths(manifest)
    return manifest


def _refuse_paths(manifest: Manifest) -> None:
    for name in manifest.files:
        first = PurePosixPath(name).parts[0] if name else ""
        if not _PATH.fullmatch(name) or first in OWN or name == MANIFEST:
            raise UserError(f"this kit would write {name!r}, which is a site's own or outside of the kit: do not use it.")


def _in_folder(folder: Path) -> dict[str, bytes]:
    manifest = read_manifest(folder)
    files = {name: folder / name for name in (*manifest.files, MANIFEST)}
    return {name: read_bytes(path) for name, path in files.items() if path.is_file() and not path.is_symlink()}


def _in_archive(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with open_regular(path) as packed, gzip.GzipFile(fileobj=packed) as zipped:
            content = zipped.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UserError(f"{path} is not a starter kit: it unpacks to more than {_MOST_BYTES >> 20} MB.")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for entry in tar:
                name = PurePosixPath(entry.name)
                if not entry.isreg() or len(name.parts) < 2 or len(files) >= _MOST_FILES:
                    raise UserError(f"{path} is not a starter kit: it holds {entry.name[:80]!r}.")
                file = tar.extractfile(entry)
                files["/".join(name.parts[1:])] = file.read() if file else b""
    except OSError as error:
        reason = error.strerror or "it is not a .tar.gz"
        raise UserError(f"cannot read the kit {path}: {reason}.") from error
    except (EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{path} is not a starter kit, or only a part of one: expected a whole .tar.gz.") from error
    return files


_REPLY_DOMAIN = b"dpfed reply 1\0"


class Reply(Section):
    """A site's answer to its kit."""

    format: Literal[1] = 1
    federation: Name
    invitation: str
    card: SiteCard
    node_key: str = Field(description="the public key of its SuperNode, as OpenSSH writes it")
    left: bool = False
    written: int = Field(
        ge=0, description="seconds since 1970; the newest reply of a site counts, and a later one has a larger"
    )
    protocol: int = PROTOCOL
    release: str = __version__

    def signed(self, identity: Identity) -> str:
        """The content of a reply's file."""
        text = self.model_dump_json(indent=1, exclude_none=True)
        return json.dumps({"signature": identity.sign(_REPLY_DOMAIN + text.encode()).hex(), "reply": text}, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path) -> Reply:
        """Reads a reply that a site sent.

        Raises:
            UserError: if it is none, or its site did not sign it.
        """
        try:
            outer = json.loads(read_text(path))
            text, signature = outer["reply"], bytes.fromhex(outer["signature"])
            if hidden_text(json.loads(text)):
                raise ValueError
            reply = cls.model_validate_json(text)
        except OSError as error:
            raise UserError(f"cannot read the reply {path}: {error.strerror or error}.") from error
        except (ValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"{path} is not a site's reply: `dpfed site setup` writes reply.json.") from error
        if not is_signed(_REPLY_DOMAIN + text.encode(), signature, reply.card.signing_key):
            raise UserError(f"{path} is not as its site signed it: ask the site to send reply.json again.")
        return reply

    def refuse(self, path: Path, kit: Manifest | None) -> None:
        """Refuses a reply that does not answer a kit.

        Args:
            path: of the reply, for messages.
            kit: of the site that it names; ``None``: there is no such site.

        Raises:
            UserError: saying why.
        """
        name = self.card.name
        if kit is None:
            raise UserError(
                f"{path} is the reply of {name!r}, which is not a site of this project: remove it, or add the site."
            )
        if self.federation != kit.federation or self.invitation != kit.invitation:
            raise UserError(
                f"{path} says that it is of {name}, and answers another kit than the one that was made for {name}: send "
                "the kit again, and have the site reply to that."
            )
        if self.protocol != PROTOCOL:
            raise UserError(
                f"{name} runs dpfed {self.release}, which speaks protocol {self.protocol}, and this is dpfed {__version__} "
                f"with protocol {PROTOCOL}: install the same release on both sides."
            )
        if not is_node_key(self.node_key):
            raise UserError(f"{path} holds an invalid SuperNode key: `dpfed site setup` makes it.")


def is_node_key(line: str) -> bool:
    """Whether a text is the public key of a SuperNode."""
    try:
        key = load_ssh_public_key(line.encode())
    except ValueError:
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
