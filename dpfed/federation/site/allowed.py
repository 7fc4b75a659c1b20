"""Checks that a site calls only the named code that its operator has allowed.

Without this check, a coordinator could run any installed code at the site.
"""

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
    """Yields, for each piece of code in the terms, its name and a line with its key, version, hash, file and arguments."""
    config = terms.run_config()
    for part in terms.code:
        arguments = arguments_of(config, part.key)
        called = f", called with {arguments}" if arguments else ""
        yield part.name, f"{part.key}: {part}, file {file_of(part.name)}{called}"


def refuse_unknown(terms: Terms, names: Collection[str]) -> None:
    """Checks the code that terms name, before a site joins them; the function imports none of that code.

    Args:
        terms: Terms of the federation.
        names: Names that the site's operator allows.

    Raises:
        UserError: If code that the terms name is not installed or differs from the terms, if the operator has not allowed a
            name, or if the operator allows a name that is not in the terms.
    """
    known = {part.name for part in terms.code}
    if strange := sorted(set(names) - known):
        there = f"they name {', '.join(sorted(known))}: allow only these" if known else "they name no code: leave --allow out"
        raise UserError(f"--allow {strange[0]}: these terms do not name it; {there}. [join-allow-unused]")
    refuse_other_code(terms.code)
    lacking = [(name, said) for name, said in described_code(terms) if name not in names]
    if lacking:
        listed = "; ".join(said for _, said in lacking)
        options = " ".join(f"--allow {name}" for name in dict.fromkeys(name for name, _ in lacking))
        raise UserError(
            f"these terms name code that would run on this machine, with access to your records: {listed}. Read that code. To "
            f"allow it, join with {options} [join-code]"
        )


def keep_allowed(path: Path, terms: Terms) -> None:
    """Writes the names of the terms' code with their hashes; writes nothing if the terms name no code.

    Args:
        path: File to write.
        terms: Terms of the federation; the operator has allowed all code that they name.
    """
    if terms.code:
        write_atomically(path, json.dumps({part.name: part.digest for part in terms.code}, indent=1) + "\n")


def refuse_unallowed(path: Path, terms: Terms) -> None:
    """Refuses code that the operator has not allowed, or that has changed since then. The function imports none of that code.

    Args:
        path: File that `keep_allowed` wrote.
        terms: Terms that the site has joined.

    Raises:
        UserError: If code that the terms name was not allowed or has changed (the message names the code), or if the file is
            missing or damaged.
    """
    if not terms.code:
        return
    allowed = _read(path)
    for part in terms.code:
        if allowed.get(part.name) != part.digest:
            raise UserError(
                f"{part.key} = {part.name!r} with SHA-256 {part.digest} is not what this site's operator allowed ({path}): "
                "restore that file, or leave the federation and join with a new site. [code-not-allowed]"
            )
    refuse_other_code(terms.code)


def _read(path: Path) -> dict[str, str]:
    """Returns the hashes of allowed code by name, from a file that `keep_allowed` wrote."""
    try:
        digests = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        digests = None
    if not isinstance(digests, dict):
        raise UserError(
            f"{path}, the list of code that may run at this site, is missing or damaged: restore it, or leave the federation "
            "and join with a new site. [code-allowed-damaged]"
        )
    return digests
