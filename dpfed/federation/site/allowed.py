"""Which named code a site's operator has allowed: a coordinator could name anything that is installed, with any arguments."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.atomic import write_atomically
from dpfed.files.reading import read_text
from dpfed.protocol.named_code import arguments_of, file_of, refuse_other_code
from dpfed.protocol.terms import Terms


def described_code(terms: Terms) -> Iterator[tuple[str, str]]:
    """Each named part of the terms, and what this machine would run: name, version, hash, file and arguments."""
    config = terms.run_config()
    for part in terms.code:
        arguments = arguments_of(config, part.key)
        called = f", called with {arguments}" if arguments else ""
        yield part.name, f"{part.key}: {part}, file {file_of(part.name)}{called}"


def refuse_unknown(terms: Terms, names: Collection[str]) -> None:
    """Looks at the code of terms before a site joins them; nothing is imported.

    Args:
        terms: of the federation.
        names: that the site's operator allows.

    Raises:
        UserError: if other code is installed here than the terms say, if the operator has not allowed one of the names, or
            allows one that is not there.
    """
    known = {part.name for part in terms.code}
    if strange := sorted(set(names) - known):
        there = f"they name {', '.join(sorted(known))}" if known else "they name no code"
        raise UserError(f"--allow {strange[0]}: these terms do not name it; {there}. [join-allow-unused]")
    refuse_other_code(terms.code)
    lacking = [(name, said) for name, said in described_code(terms) if name not in names]
    if lacking:
        listed = "; ".join(said for _, said in lacking)
        options = " ".join(f"--allow {name}" for name in dict.fromkeys(name for name, _ in lacking))
        raise UserError(
            f"these terms name code that would run on this machine, beside your records: {listed}. Read that code. If it may "
            f"run here, join with {options} [join-code]"
        )


def keep_allowed(path: Path, terms: Terms) -> None:
    """Notes what was allowed, with the hash of now.

    Args:
        path: of the file.
        terms: all of whose code is allowed.
    """
    if terms.code:
        write_atomically(path, json.dumps({part.name: part.digest for part in terms.code}, indent=1) + "\n")


def refuse_unallowed(path: Path, terms: Terms) -> None:
    """Refuses to call code that was not allowed, or that is another one now; nothing is imported.

    Args:
        path: of the file.
        terms: that the site has joined.

    Raises:
        UserError: saying which.
    """
    if not terms.code:
        return
    allowed = _read(path)
    for part in terms.code:
        if allowed.get(part.name) != part.digest:
            raise UserError(
                f"{part.key} = {part.name!r} with SHA-256 {part.digest} is not what this site's operator allowed ({path}): "
                "restore that file, or leave, and join with a new site. [code-not-allowed]"
            )
    refuse_other_code(terms.code)


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(
            f"{path} is missing or damaged: it says which code may run here. Restore it, or leave, and join with a new site. "
            "[code-allowed-damaged]"
        )
    return found
