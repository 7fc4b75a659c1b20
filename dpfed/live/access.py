"""Controls access to the live page: it listens on this machine only, and each request needs the token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.reading import read_text

_SHORTEST = 16  # least number of characters of a token


@dataclass(frozen=True)
class Access:
    """The port and the token of the live page.

    Attributes:
        port: Port on loopback; 0: the system chooses a free port.
        token: Token that every request must carry.
    """

    port: int
    token: str

    @classmethod
    def of(cls, port: int, token_file: Path | None) -> Access:
        """Makes the access from the operator's options, and checks them.

        Args:
            port: Port to listen on; 0: any free port.
            token_file: File with the token, readable by its owner only; ``None``: make a new token.

        Raises:
            UserError: If the port is out of range, or the file is unreadable, open to others, or holds no valid token.
        """
        if not 0 <= port <= 65535:
            raise UserError(f"--port {port}: expected 1 to 65535, or 0 for any that is free. [watch-port-range]")
        return cls(port, secrets.token_urlsafe(24) if token_file is None else _token_in(token_file))

    @property
    def cookie(self) -> str:
        """The cookie's name, which depends on the token, so that several pages on one host do not share a cookie."""
        return f"dpfed-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def allows(self, query: str | None, cookies: str, authorization: str) -> bool:
        """Returns whether a request carries the token.

        Args:
            query: Token in the address; ``None``: the address has no token.
            cookies: Value of the ``Cookie`` header.
            authorization: Value of the ``Authorization`` header, such as ``Bearer TOKEN``.
        """
        given = [query or "", _cookie(cookies, self.cookie), authorization.removeprefix("Bearer ")]
        return any(hmac.compare_digest(candidate.encode(), self.token.encode()) for candidate in given)

    def knows(self, host: str) -> bool:
        """Returns whether a request's ``Host`` is loopback. Other names that resolve to this machine are refused."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return is_loopback(name.strip("[]"))


def is_loopback(host: str) -> bool:
    """Returns whether a host is a loopback address, which only this machine can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _cookie(header: str, name: str) -> str:
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _token_in(file: Path) -> str:
    try:
        if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise UserError(
                f"other users have access to {file}: `chmod 600 {file}`, and write a new token to it. [watch-token-shared]"
            )
        token = read_text(file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}. [watch-token-unreadable]") from error
    if len(token) < _SHORTEST or not all(
        character.isascii() and (character.isalnum() or character in "-_") for character in token
    ):
        raise UserError(
            f"{file} does not contain a valid token: expected at least {_SHORTEST} letters, digits, - or _, "
            f"such as from `(umask 077; openssl rand -hex 24 > {file})`. [watch-token-wrong]"
        )
    return token
