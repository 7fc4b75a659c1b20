"""Checks of what a coordinator keeps: its own key, the run's configuration, and the keys of its certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.protocol.terms import Terms
from dpfed.federation.provisioning.certificates import SERVER, SERVER_KEY, certificates_in
from dpfed.federation.provisioning.findings import Finding, State
from dpfed.files.reading import read_bytes


def of_party(folder: Path) -> Iterator[Finding]:
    """Whether the coordinator's key is the one that the terms name, and the run's configuration can be read.

    Args:
        folder: of the coordinator, as it was provisioned.

    Raises:
        UserError: if one of them is missing or damaged.
    """
    party = CoordinatorFolder(folder / "federation")
    if not party.path.exists():  # there are no terms yet
        return
    if party.identity().signing_key != Terms.load(party.terms).coordinator:
        said = f"{party.path / 'identity.key'} is not the key that the terms name, so no site will answer"
        yield Finding("keys", State.BAD, said, "restore the one that was there when the terms were made")
    party.config()
    if not (folder / "nodes").is_dir():
        said = f"{folder / 'nodes'} is missing, which holds the SuperNodes' public keys"
        yield Finding("keys", State.BAD, said, "dpfed federation provision PROJECT makes it from the replies")


def of_server(folder: Path, advice: str) -> Iterator[Finding]:
    """Whether a server's key is there, and is that of its certificate.

    Args:
        folder: of both.
        advice: how new ones are made.

    Raises:
        UserError, OSError: if one of them cannot be read.
    """
    try:
        key = load_pem_private_key(read_bytes(folder / SERVER_KEY), None)
        fits = key.public_key() == certificates_in(folder / SERVER)[0].public_key()
    except (ValueError, TypeError):
        fits = False
    if not fits:
        yield Finding("certificate", State.BAD, f"{folder / SERVER_KEY} is not the key of {folder / SERVER}", advice)
