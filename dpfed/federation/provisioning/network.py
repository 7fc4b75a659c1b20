"""Checks certificates, clock, ports, and the way to the coordinator.

The module also has `Finding`, the form in which all checks of a site report their results.
"""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path

from cryptography import x509

from dpfed.federation.provisioning.certificates import certificates_in
from dpfed.files.reading import read_text


class State(StrEnum):
    """The result of a check."""

    GOOD = "good"
    CARE = "care"  # works, but needs attention
    UNKNOWN = "unknown"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """One finding of a check.

    Attributes:
        about: Subject of the check.
        state: Result of the check.
        said: Description of the finding.
        advice: Advice on what to do; empty where nothing is to be done.
    """

    about: str
    state: State
    said: str
    advice: str = ""


_SOON = datetime.timedelta(days=60)
# Flower refuses a SuperNode whose clock is 5 s ahead of the SuperLink's, or 305 s behind it. HTTP tells whole seconds.
_AHEAD, _BEHIND = 4.0, 60.0  # seconds by which a clock may differ
_WAIT = 10.0  # seconds for the coordinator's answer
_STRANGE = (
    "the certificate is not signed by the authority in ca.crt",
    "take the newest kit: `dpfed site join FOLDER KIT`; if that does not help, a proxy or an attacker intercepts TLS: "
    "ask your network's administrator",
)
_WRONG = {  # OpenSSL's words about a certificate: their meaning, and what to do
    "expired": ("its certificate has expired", "call the coordinator, who renews it; look at this machine's date, too"),
    "not yet valid": ("its certificate is not valid yet", "set this machine's clock: it is behind"),
    "mismatch": (
        "its certificate is for another name",
        "call the coordinator: `host` in project.toml must be the host of this address",
    ),
    "local issuer": _STRANGE,
    "self-signed": _STRANGE,
    "self signed": _STRANGE,
    "signature failure": _STRANGE,
}


def of_certificate(path: Path, advice: str) -> Iterator[Finding]:
    """Checks whether the newest certificate in a file is valid now and for another 60 days.

    Args:
        path: File of the certificates.
        advice: Advice on how to make a new certificate.

    Yields:
        The finding.

    Raises:
        UserError: If the certificates cannot be read, see `certificates_in`.
    """
    now = datetime.datetime.now(datetime.UTC)
    newest = max(certificates_in(path), key=lambda each: each.not_valid_after_utc)
    until = newest.not_valid_after_utc
    said = f"{path.name} is valid until {until:%Y-%m-%d}"
    if now < newest.not_valid_before_utc:
        yield Finding(
            "clock",
            State.BAD,
            f"{path.name} is valid from {newest.not_valid_before_utc:%Y-%m-%d}, which is in the future",
            "set this machine's clock: it is behind",
        )
    elif now > until:
        yield Finding("certificate", State.BAD, f"{path.name} has expired on {until:%Y-%m-%d}", advice)
    elif now + _SOON > until:
        yield Finding("certificate", State.CARE, said, advice)
    else:
        yield Finding("certificate", State.GOOD, said)


def of_port(port: int, who: str, advice: str) -> Iterator[Finding]:
    """Checks whether a program listens on a port of this machine.

    Args:
        port: Port on loopback.
        who: Name of the program that should listen.
        advice: Advice on what to do if no program listens.

    Yields:
        The finding.
    """
    with socket.socket() as probe:
        probe.settimeout(1)
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    said = f"{who}: 127.0.0.1:{port} {'answers' if taken else 'does not answer'}"
    yield Finding("ports", State.GOOD if taken else State.CARE, said, "" if taken else advice)


def of_connection(address: str, authority: Path, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Checks whether the coordinator answers with TLS, how long its certificate is valid, and how far the clocks differ.

    Args:
        address: Address of the coordinator, HOST:PORT.
        authority: PEM file of the certificate authority that must have signed the coordinator's certificate.
        settings: Environment variables of the SuperNode: ``HTTPS_PROXY`` and ``NO_PROXY`` are used.

    Yields:
        The findings.
    """
    try:
        import httpx
    except ImportError:
        yield Finding("coordinator", State.UNKNOWN, "httpx is not installed", "pip install 'dpfed[flower]'")
        return
    host = address.rpartition(":")[0].strip("[]")
    without = [name.strip().lstrip(".") for name in settings.get("NO_PROXY", "").split(",")]
    direct = any(name and (host == name or host.endswith(f".{name}")) for name in without)
    proxy = None if direct else settings.get("HTTPS_PROXY")
    way = f"{address}{f' through {_without_password(proxy)}' if proxy else ''}"
    try:
        context = ssl.create_default_context(cadata=read_text(authority))
    except (OSError, ValueError) as error:
        said = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        advice = f"restore it from a backup, or ask the coordinator for {authority.name}"
        yield Finding("coordinator", State.BAD, f"{authority}, which verifies the coordinator, {said}", advice)
        return
    try:
        with (
            httpx.Client(verify=context, timeout=_WAIT, proxy=proxy or None, trust_env=False) as client,
            client.stream("GET", f"https://{address}/") as response,
        ):
            channel = response.extensions["network_stream"].get_extra_info("ssl_object")
            certificate = x509.load_der_x509_certificate(channel.getpeercert(True))
            date = response.headers.get("date")
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError) as error:  # ImportError: a SOCKS proxy
        text = str(error) or type(error).__name__
        for words, (said, advice) in _WRONG.items():
            if words in text.lower():
                yield Finding("coordinator", State.BAD, f"{way}: {said}", advice)
                return
        advice = "let this machine open connections to it (NETWORK.md), or set HTTPS_PROXY in .env"
        yield Finding("coordinator", State.BAD, f"{way} cannot be reached ({text})", advice)
        return
    until = certificate.not_valid_after_utc
    soon = datetime.datetime.now(datetime.UTC) + _SOON > until
    said = f"{way} answers with TLS; its certificate is valid until {until:%Y-%m-%d}"
    yield Finding("coordinator", State.CARE if soon else State.GOOD, said, "tell the coordinator to renew it" if soon else "")
    yield from of_clock(date)


def of_clock(date: str | None) -> Iterator[Finding]:
    """Checks how far this machine's clock is from the coordinator's.

    Args:
        date: Date header of the coordinator's answer; ``None``: there was none.

    Yields:
        The finding.
    """
    try:
        theirs = parsedate_to_datetime(date or "")
    except ValueError:
        yield Finding("clock", State.UNKNOWN, "the coordinator does not say what time it is", "compare the clocks by telephone")
        return
    if theirs.tzinfo is None:  # the zone -0000
        theirs = theirs.replace(tzinfo=datetime.UTC)
    away = (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
    said = f"{abs(away):,.0f} s {'ahead of' if away > 0 else 'behind'} the coordinator's"
    if not -_BEHIND <= away <= _AHEAD:
        yield Finding(
            "clock", State.BAD, said, "set it by NTP (timedatectl set-ntp true): Flower refuses a site with a wrong clock"
        )
    else:
        yield Finding("clock", State.GOOD, said)


def _without_password(proxy: str) -> str:
    """Returns a proxy's address without the user's name and password."""
    scheme, _, rest = proxy.rpartition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if scheme else rest.rpartition("@")[2]
