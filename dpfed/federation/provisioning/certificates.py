"""Makes and reads certificates for a SuperLink, and keys for SuperNodes.

An authority (``ca.crt``, which every site gets, and ``ca.key``, which should be kept offline) signs the server's certificate
(``server.pem``, ``server.key``).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpfed.errors import UserError
from dpfed.federation.provisioning.project import is_host
from dpfed.files.atomic import make_folder, write_atomically
from dpfed.files.reading import read_bytes

AUTHORITY = "ca.crt"
AUTHORITY_KEY = "ca.key"
SERVER = "server.pem"
SERVER_KEY = "server.key"
NODE, NODE_PUBLIC, RUNTIME = "node", "node.pub", "runtime.secret"  # files of a site's SuperNode

_CURVE = ec.SECP384R1()
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 365
_PEM = serialization.Encoding.PEM


def make_certificates(folder: Path, hosts: list[str], days: int = _SERVER_DAYS) -> None:
    """Makes a server's certificate and key, signed by the folder's authority; makes the authority if there is none.

    If a key exists without its certificate, the function uses this key. So a call that was cut short can be repeated.

    Args:
        folder: Folder that holds or gets ``ca.crt``, ``ca.key`` and ``server.key``, and gets ``server.pem``.
        hosts: Names and IP addresses under which sites reach the server.
        days: Number of days for which the server's certificate is valid; default: 365.

    Raises:
        UserError: If the server's certificate exists, if the authority's certificate is damaged, if the authority's key is
            missing or belongs to another certificate, if a key is damaged or not of the kind that dpfed makes, or if a host is
            neither a name nor an IP address.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_existing(folder / SERVER)
    alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    authority, authority_key = _authority(folder)
    key = _private_key(folder / SERVER_KEY)
    certificate = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]), authority.subject, key.public_key(), days)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    write_atomically(folder / SERVER, certificate.public_bytes(_PEM), 0o644)


def make_node_key(folder: Path, name: str) -> None:
    """Makes a SuperNode's key pair.

    Args:
        folder: Folder that gets the files.
        name: Name of the private key's file; the file of the public key has the suffix ``.pub``.

    Raises:
        UserError: If one of the two files exists.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    private, public = folder / name, folder / f"{name}.pub"
    _refuse_existing(private, public)
    key = ec.generate_private_key(_CURVE)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomically(private, _private(key, serialization.PrivateFormat.OpenSSH), 0o600)
    write_atomically(public, line + f" {name}\n".encode(), 0o644)


def make_site_keys(folder: Path) -> None:
    """Makes the key of a site's SuperNode, and the secret that the SuperNode shares with its app, unless they exist.

    Args:
        folder: Folder that gets ``node``, ``node.pub`` and ``runtime.secret``.
    """
    make_folder(folder, 0o700)
    if not (folder / NODE_PUBLIC).is_file():
        (folder / NODE).unlink(missing_ok=True)  # the public half is written last: without this file, the key is incomplete
        make_node_key(folder, NODE)
        if os.geteuid() == 0:  # the folder may belong to the SuperNode's user
            for name in (NODE, NODE_PUBLIC):
                os.chown(folder / name, folder.stat().st_uid, folder.stat().st_gid)
    if not (folder / RUNTIME).exists():
        write_atomically(folder / RUNTIME, secrets.token_bytes(32), 0o600)


def is_whole(folder: Path) -> bool:
    """Returns whether the private key of a site's SuperNode is undamaged, and matches the public key beside it.

    Raises:
        OSError: If a file of the keys cannot be read.
    """
    try:
        key = serialization.load_ssh_private_key(read_bytes(folder / NODE), password=None)
    except (ValueError, UnsupportedAlgorithm):
        return False
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line.split() == read_bytes(folder / NODE_PUBLIC).split()[:2]


def is_for(path: Path, host: str) -> bool:
    """Returns whether a server's certificate is for a host's name or IP address.

    Args:
        path: File of the certificate.
        host: Name or IP address, see `make_certificates`.

    Raises:
        UserError: If the host is neither a name nor an IP address, or the certificate cannot be read, see `certificates_in`.
    """
    try:
        names = certificates_in(path)[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return _general_name(host) in names


def certificates_in(path: Path) -> list[x509.Certificate]:
    """Returns the certificates in a file.

    Raises:
        UserError: If the file cannot be read, or contains no certificate.
    """
    try:
        return x509.load_pem_x509_certificates(read_bytes(path))
    except OSError as error:
        raise UserError(f"cannot read the certificate {path}: {error.strerror or error}. [certificate-unread]") from error
    except ValueError as error:
        raise UserError(
            f"{path} does not contain a certificate in PEM format: restore the original file. [certificate-format]"
        ) from error


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Returns the authority's certificate and key; makes them if there is no certificate."""
    certificate_file, key_file = folder / AUTHORITY, folder / AUTHORITY_KEY
    if certificate_file.exists() and key_file.exists():
        certificate, key = certificates_in(certificate_file)[0], _private_key(key_file)
        if certificate.public_key() != key.public_key():  # every site would refuse what this key signs
            raise UserError(
                f"{key_file} does not belong to the certificate {certificate_file}: put the certificate's key there. "
                "[certificate-other-key]"
            )
        return certificate, key
    if certificate_file.exists():
        raise UserError(f"{certificate_file} lacks its key: put {key_file} back, or use a new folder. [certificate-no-key]")
    key = _private_key(key_file)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpfed federation authority")])
    certificate = (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_atomically(certificate_file, certificate.public_bytes(_PEM), 0o644)
    return certificate, key


def _private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Returns the key in a file; makes a new key if there is no file.

    A certificate is written after its key, so a call that was cut short may have written only the key.
    """
    if not file.exists():
        key = ec.generate_private_key(_CURVE)
        write_atomically(file, _private(key, serialization.PrivateFormat.PKCS8), 0o600)
        return key
    try:
        loaded = serialization.load_pem_private_key(read_bytes(file), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: the key needs a password
        loaded = None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise UserError(f"{file} does not contain a key that dpfed made: restore the original file. [certificate-key]")
    return loaded


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


def _general_name(host: str) -> x509.GeneralName:
    if not is_host(host):
        raise UserError(f"{host!r} is neither a host's name nor an IP address: leave out scheme and port. [certificate-host]")
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
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
            raise UserError(f"{path} exists: move it away, or choose another folder. [certificate-exists]")
