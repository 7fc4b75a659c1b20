"""Who may see the page: whoever has its token, on this machine."""

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

_SHORTEST = 16  # characters of a token


@dataclass(frozen=True)
class Access:
    """Where the page is, and for whom.

    Attributes:
        port: on loopback; 0 lets the system choose.
        token: that opens it.
    """

    port: int
    token: str

    @classmethod
    def of(cls, port: int, token_file: Path | None) -> Access:
        """Checks what the operator asks for.

        Args:
            port: to listen on.
            token_file: that holds the token; ``None``: a new one for this time.

        Raises:
            UserError: for a port or a token that is none.
        """
        if not 0 <= port <= 65535:
            raise UserError(f"--port {port}: expected 1 to 65535, or 0 for any that is free. [watch-port-range]")
        return cls(port, secrets.token_urlsafe(24) if token_file is None else _token_in(token_file))

    @property
    def cookie(self) -> str:
        """Its name: that of another page on the same host is another."""
        return f"dpfed-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def allows(self, query: str | None, cookies: str, authorization: str) -> bool:
        """Whether a request brings the token: in its address, in a cookie, or as a bearer."""
        given = [query or "", _cookie(cookies, self.cookie), authorization.removeprefix("Bearer ")]
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in given)

    def knows(self, host: str) -> bool:
        """Whether a request may name this host. A page of another name, which leads here, is not ours."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return is_loopback(name.strip("[]"))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _token_in(file: Path) -> str:
    try:
        if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise UserError(f"others can read {file}: `chmod 600 {file}`, and write a new token into it. [watch-token-shared]")
        token = read_text(file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}. [watch-token-unreadable]") from error
    if len(token) < _SHORTEST or not all(
        character.isascii() and (character.isalnum() or character in "-_") for character in token
    ):
        raise UserError(
            f"{file} holds no token: expected at least {_SHORTEST} letters, digits, - or _, "
            f"such as from `(umask 077; openssl rand -hex 24 > {file})`. [watch-token-wrong]"
        )
    return token
