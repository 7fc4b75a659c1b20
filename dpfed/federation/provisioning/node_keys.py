"""The keys of a site's SuperNodes: one in use, and in the other slot, while keys are rotated, the next one."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from dpfed.errors import UserError
from dpfed.federation.provisioning.certificates import make_node_key
from dpfed.federation.provisioning.services import SLOTS, Slot
from dpfed.files.atomic import make_folder, new_folder, sync_folder, write_atomically
from dpfed.files.reading import read_bytes, read_text


class NodeKeys:
    """A folder of them, beside the secret that SuperNode and app share.

    Args:
        path: of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def make_first(self) -> None:
        """Makes what is not there yet of the folder, the first key and the secret."""
        make_folder(self._path, 0o700)
        if not self.slots():
            self._make("a")
        if not (self._path / "runtime.secret").exists():
            write_atomically(self._path / "runtime.secret", secrets.token_bytes(32), 0o600)

    def slots(self) -> list[Slot]:
        """The slots that have a key, the newest last."""
        made = [slot for slot in SLOTS if self._public(slot).is_file()]
        return sorted(made, key=lambda slot: self._public(slot).stat().st_mtime_ns)

    def public(self) -> dict[Slot, str]:
        """The public keys, as OpenSSH writes them."""
        return {slot: read_text(self._public(slot)).strip() for slot in self.slots()}

    def damaged(self) -> list[Path]:
        """The private keys that are there, and are no key or not that of their public half."""
        return [
            path for slot, line in self.public().items() if (path := self._path / slot).is_file() and not _is_half(path, line)
        ]

    def make_next(self) -> Slot:
        """Makes a key in the slot that is not in use.

        Returns:
            The slot.

        Raises:
            UserError: if a rotation is not finished yet.
        """
        slots = self.slots()
        if len(slots) > 1:
            raise UserError(
                f"{self._path} has two SuperNode's keys already, the newer one for node-{slots[-1]}: finish that rotation with "
                "`dpfed site rotate --done`."
            )
        slot: Slot = "b" if slots == ["a"] else "a"
        self._make(slot)
        return slot

    def forget_old(self) -> Slot:
        """Removes the key that a newer one has replaced.

        Returns:
            Its slot.

        Raises:
            UserError: if there is only one.
        """
        slots = self.slots()
        if len(slots) < 2:
            has = f"the key of node-{slots[0]} alone" if slots else "no SuperNode's key"
            raise UserError(f"{self._path} has {has}: `dpfed site rotate` makes the next one.")
        self._public(slots[0]).unlink()
        (self._path / slots[0]).unlink(missing_ok=True)
        sync_folder(self._path)
        return slots[0]

    def _public(self, slot: Slot) -> Path:
        return self._path / f"{slot}.pub"

    def _make(self, slot: Slot) -> None:
        """A key, whose public half comes last: without it there is no key in the slot."""
        draft, owner = self._path / ".new", self._path.stat()
        shutil.rmtree(draft, ignore_errors=True)  # of an attempt that was killed
        with new_folder(draft, 0o700) as folder:
            make_node_key(folder, slot)
        for name in (slot, f"{slot}.pub"):
            if os.geteuid() == 0:  # the folder may be that of the SuperNode's user
                os.chown(draft / name, owner.st_uid, owner.st_gid)
            os.replace(draft / name, self._path / name)
        draft.rmdir()
        sync_folder(self._path)


def _is_half(private: Path, public: str) -> bool:
    """Whether a file holds the private key of a public one."""
    try:
        key = serialization.load_ssh_private_key(read_bytes(private), password=None)
    except (ValueError, UnsupportedAlgorithm):
        return False
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line.split() == public.encode().split()[:2]
