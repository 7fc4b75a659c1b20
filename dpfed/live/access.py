"""Who may see the page: whoever has its token. No port beyond this machine opens without TLS, unless `insecure` was typed."""

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
        host: address or name that it listens on.
        port: 0 lets the system choose.
        token: that opens it.
        certificate: PEM file of the certificate, with TLS.
        key: of its key.
    """

    host: str
    port: int
    token: str
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def of(
        cls,
        host: str,
        port: int,
        token_file: Path | None,
        certificate: Path | None,
        key: Path | None,
        insecure: bool,
    ) -> Access:
        """Checks what the operator asks for.

        Args:
            host: to listen on.
            port: likewise.
            token_file: that holds the token; ``None``: a new one for this time.
            certificate: PEM file, with TLS.
            key: of its key.
            insecure: whether others than this machine may be talked to without TLS.

        Raises:
            UserError: for a port beyond this machine without TLS, half of a certificate, or a token that is none.
        """
        if not 0 <= port <= 65535:
            raise UserError(f"--port {port}: expected 1 to 65535, or 0 for any that is free.")
        if (certificate is None) != (key is None):
            raise UserError("TLS needs both, --certificate FILE and --key FILE: give the other one, too.")
        for file in (certificate, key):
            if file is not None and not file.is_file():
                raise UserError(f"{file} is no file: expected a certificate and its key, in PEM.")
        if key is not None and os.name == "posix" and key.stat().st_mode & stat.S_IRWXO:
            raise UserError(f"{key} can be read by all users of this machine: `chmod o= {key}`, and make another key.")
        if not is_loopback(host) and certificate is None and not insecure:
            raise UserError(
                f"--host {host} can be reached from other machines: give --certificate and --key for TLS, or leave --host out "
                "and come through an SSH tunnel. --insecure opens it without TLS: then everybody on the way reads the token."
            )
        if is_loopback(host) and insecure:
            raise UserError(f"--insecure changes nothing on {host}, which only this machine reaches: leave it out.")
        token = secrets.token_urlsafe(24) if token_file is None else _token_in(token_file)
        return cls(host, port, token, certificate, key)

    @property
    def cookie(self) -> str:
        """Its name: that of another page on the same host is another."""
        return f"dpfed-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    @property
    def scheme(self) -> str:
        """Of the address."""
        return "http" if self.certificate is None else "https"

    def allows(self, query: str | None, cookies: str, authorization: str) -> bool:
        """Whether a request brings the token: in its address, in a cookie, or as a bearer."""
        given = [query or "", _cookie(cookies, self.cookie), authorization.removeprefix("Bearer ")]
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in given)

    def knows(self, host: str) -> bool:
        """Whether a request may name this host. A page of another name, which leads here, is not ours."""
        if not is_loopback(self.host):
            return True
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
            raise UserError(f"{file} can be read by other users: `chmod 600 {file}`, and write another token into it.")
        token = read_text(file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the token in {file}: {getattr(error, 'strerror', None) or error}.") from error
    if len(token) < _SHORTEST or not all(
        character.isascii() and (character.isalnum() or character in "-_") for character in token
    ):
        raise UserError(
            f"{file} holds no token: expected at least {_SHORTEST} letters, digits, - or _, "
            f"such as from `(umask 077; openssl rand -hex 24 > {file})`."
        )
    return token
