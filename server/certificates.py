"""Certificates for a SuperLink, and keys for SuperNodes.

    python -m server.certificates DIR --host superlink.example.org --host 10.1.2.3    a server's certificate
    python -m server.certificates DIR --node north                                    a SuperNode's key pair

The first makes ``server.pem`` and ``server.key``, and beforehand, where there is none yet, the authority that signs them:
``ca.crt``, which every site gets, and ``ca.key``, which should lie on no machine that is online. The second makes ``north``,
in the form that ``ssh-keygen -t ecdsa -b 384`` writes, and ``north.pub``: a site makes both at home and hands out only the
public half.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import re
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpfed.errors import UserError
from dpfed.files.atomic import create_file
from dpfed.files.reading import read_bytes

_CURVE = ec.SECP384R1()
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 365
_PEM = serialization.Encoding.PEM


def make_certificates(folder: Path, hosts: list[str], days: int = _SERVER_DAYS) -> None:
    """Makes a server's certificate and key, signed by the folder's authority; makes the authority if there is none.

    Args:
        folder: holds or gets ``ca.crt`` and ``ca.key``; gets ``server.pem`` and ``server.key``.
        hosts: names and IP addresses under which sites reach the server.
        days: after which the server's certificate is no longer valid.

    Raises:
        UserError: if a file that would be written is there, or the authority is incomplete.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_existing(folder / "server.pem", folder / "server.key")
    alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    authority, authority_key = _authority(folder)
    key = ec.generate_private_key(_CURVE)
    certificate = (
        _builder(_named(hosts[0]), authority.subject, key.public_key(), days)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    create_file(folder / "server.key", _private(key, serialization.PrivateFormat.PKCS8), 0o600)
    create_file(folder / "server.pem", certificate.public_bytes(_PEM), 0o644)


def make_node_key(folder: Path, name: str) -> None:
    """Makes a SuperNode's key pair.

    Args:
        folder: gets the files.
        name: of the private key's file; the public one's ends in ``.pub``.

    Raises:
        UserError: if a file of that name is there, or it is no name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise UserError(f"--node {name!r} is no name for a file: use letters, digits, - and _.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    private, public = folder / name, folder / f"{name}.pub"
    _refuse_existing(private, public)
    key = ec.generate_private_key(_CURVE)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    create_file(private, _private(key, serialization.PrivateFormat.OpenSSH), 0o600)
    create_file(public, line + f" {name}\n".encode(), 0o644)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_file, key_file = folder / "ca.crt", folder / "ca.key"
    if certificate_file.exists() and key_file.exists():
        key = serialization.load_pem_private_key(read_bytes(key_file), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{key_file} holds another kind of key than this program makes: restore the one that it wrote.")
        return x509.load_pem_x509_certificate(read_bytes(certificate_file)), key
    if certificate_file.exists():
        raise UserError(
            f"{certificate_file} is there, but not {key_file}, which signs in its name: bring both, or use a new folder."
        )
    _refuse_existing(key_file)
    key = ec.generate_private_key(_CURVE)
    name = _named("dpfed federation authority")
    certificate = (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    create_file(key_file, _private(key, serialization.PrivateFormat.PKCS8), 0o600)
    create_file(certificate_file, certificate.public_bytes(_PEM), 0o644)
    return certificate, key


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks of sites differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        raise UserError(f"--host {host!r} is neither a host's name nor an IP address: leave out scheme and port.")
    return x509.DNSName(host)


def _usage(**what: bool) -> x509.KeyUsage:
    kinds = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    kinds += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**(dict.fromkeys(kinds, False) | what))


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(_PEM, form, serialization.NoEncryption())


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path} is there already and is not overwritten: move it away, or choose another folder.")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m server.certificates", description="Certificates and keys of a federation.")
    parser.add_argument("folder", type=Path, help="where the files are put")
    parser.add_argument("--host", action="append", default=[], help="a name or IP address of the SuperLink; may be repeated")
    parser.add_argument("--node", action="append", default=[], help="name of a SuperNode; may be repeated")
    options = parser.parse_args(arguments)
    if not options.host and not options.node:
        parser.error("give --host for a server's certificate, --node for a SuperNode's key pair, or both")
    try:
        if options.host:
            make_certificates(options.folder, options.host)
        for name in options.node:
            make_node_key(options.folder, name)
    except UserError as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
