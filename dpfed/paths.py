"""Checks paths on this machine as users write them, and makes proxy settings that exempt connections within the machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dpfed.errors import UserError

_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
STORE_HEADER = "store.json"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")  # one slash: a Path turns "s3://" into "s3:/"
_LONGEST, _LONGEST_PART = 4095, 255  # bytes of a path and of each name in it, on common file systems


def local_path(given: str | os.PathLike[str], what: str) -> Path:
    """Returns the absolute path of a file or folder. ``a/..`` is resolved even if ``a`` does not exist.

    Args:
        given: Path that the user wrote.
        what: Description of the path, for messages.

    Raises:
        UserError: See `path_of`.
    """
    path = path_of(given, what).absolute()
    if ".." not in path.parts:
        return path
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # circular links: opening the path will report them
        return path


def path_of(given: str | os.PathLike[str], what: str) -> Path:
    """Checks the path of a file or folder, and returns it as it was given, relative or absolute.

    Args:
        given: Path that the user wrote.
        what: Description of the path, such as ``"the folder of a run"``, for messages.

    Raises:
        UserError: If `given` is not a path, is empty (which would silently mean the current folder), is a URL, or cannot name a
            file; also if a relative path is given and the current folder was deleted.
    """
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"{what} must be a path (a string or a pathlib.Path), got {given!r}. [path-type]")
    text = os.fsdecode(given)
    if not text.strip():
        raise UserError(f"the path given for {what} is empty: write '.' for the current folder. [path-empty]")
    if not _is_utf8(text) and _is_utf8_on_disk(text):
        raise UserError(
            f"{what}, {os.fsencode(text).decode()}, has letters that Python cannot read, because it decodes file names as "
            f"{sys.getfilesystemencoding()}: set PYTHONUTF8=1. [path-encoding]"
        )
    if "\0" in text or not _is_utf8(text):
        raise UserError(
            f"{what}, {text!r}, contains a null character or is not UTF-8: rename it, or choose another. [path-not-utf8]"
        )
    if is_url(text):  # as a path, it would silently mean a folder named "s3:"
        raise UserError(f"{what}, {text}, is a URL: give a path on this machine. [path-address]")
    path = Path(text)
    try:
        whole = path.absolute()
    except FileNotFoundError as error:
        raise UserError(
            f"{what}, {text}, is in the current folder, which was deleted: change to another folder, or give an absolute path. "
            "[path-folder-gone]"
        ) from error
    if len(os.fsencode(whole)) > _LONGEST or any(len(os.fsencode(part)) > _LONGEST_PART for part in path.parts):
        raise UserError(
            f"the path given for {what} is too long: a path has at most {_LONGEST:,} bytes, and each name in it at most "
            f"{_LONGEST_PART}; choose another. [path-too-long]"
        )
    return path


def is_url(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is a URL such as ``s3://bucket/store`` instead of a path on this machine's disk."""
    return bool(_URL.match(os.fspath(path)))


def is_store(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path looks like a record store (the store may still be damaged)."""
    return (Path(path) / STORE_HEADER).is_file()


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables that exempt connections within this machine from the proxy set in `environment`.

    gRPC, which Flower and Ray use, reads ``no_grpc_proxy`` or else ``no_proxy``, in lower case only.

    Args:
        environment: Environment variables.

    Returns:
        The variables with their values; empty if no proxy is named.
    """
    if not proxy_names(environment):
        return {}
    wanted = [name for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy") if name in environment or name != "no_grpc_proxy"]
    settings = {}
    for name in wanted:
        given = environment.get(name) or environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        hosts = [host.strip() for host in given.split(",") if host.strip()]
        settings[name] = ",".join(dict.fromkeys([*hosts, *_LOOPBACK] if "*" not in hosts else ["*"]))
    return settings


def proxy_names(environment: Mapping[str, str]) -> list[str]:
    """Returns the names of the variables that name a proxy, but not their values, which may contain a password."""
    return sorted(name for name, value in environment.items() if value and name.lower() in _PROXIES)


def proxy_hint() -> str:
    """Returns the end of a message about a failed connection: a hint about the proxy; empty if no proxy is set."""
    names = proxy_names(os.environ)
    return f" A proxy is set ({', '.join(names)}): if the address needs none, add its host to no_proxy." if names else ""


def _is_utf8_on_disk(text: str) -> bool:
    try:
        os.fsencode(text).decode()
    except UnicodeError:
        return False
    return True


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
