"""Files of the repository that an installed package does not carry: configurations and published figures."""

from __future__ import annotations

from pathlib import Path

from dpfed.errors import UserError

_ROOT = Path(__file__).resolve().parents[2]


def in_checkout(*parts: str) -> Path:
    """The path of a file of the repository.

    Raises:
        UserError: if it is not there, as where only the package is installed.
    """
    path = _ROOT.joinpath(*parts)
    if not path.exists():
        raise UserError(f"there is no {'/'.join(parts)} in {_ROOT}: `dpfed reproduce` wants a checkout, installed with `-e`.")
    return path
