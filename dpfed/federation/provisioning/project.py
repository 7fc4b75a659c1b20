"""`project.toml`: the decisions that the coordinator's operator makes before any site exists.

The module also checks hosts. A host is a DNS name (RFC 1123) or an IP address.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from dpfed.config import Config, Section, first_problem, load_config
from dpfed.errors import UserError
from dpfed.federation.provisioning.services import LINK_PORT
from dpfed.files.toml_file import read_toml
from dpfed.protocol.trust import Mode, Trust
from dpfed.schema.section import Items

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LONGEST = 253  # most characters of a DNS name


def is_host(text: str) -> bool:
    """Returns whether a text is a host name or an IP address under which others can reach a machine.

    A name that has a number after its last dot is refused: it is a mistyped IP address.

    Args:
        text: Text without scheme and port.
    """
    try:
        return not ipaddress.ip_address(text).is_unspecified and "%" not in text
    except ValueError:
        named = re.fullmatch(rf"({_LABEL}\.)*{_LABEL}", text)
        return bool(named) and len(text) <= _LONGEST and not text.rpartition(".")[2].isdigit()


def is_address(text: str) -> bool:
    """Returns whether a text is HOST:PORT, as `Project.address` writes it."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:]+)):([0-9]{1,5})", text)
    return match is not None and is_host(match[1] or match[2]) and 1 <= int(match[3]) <= 65535


_NAME = "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"
Name = Annotated[str, StringConstraints(pattern=_NAME)]


class Project(Section):
    """A federation before it begins. Read it with `Project.load`.

    ``trust``, ``drops``, ``colluders``, ``deadline`` and ``broadcast`` are the fields of the terms with these names, see
    `dpfed.protocol.terms.Terms`.
    """

    name: Name = Field(description="name of the federation, and of the folders of all parties")
    config: str = Field(description="configuration of the run: a TOML file, or the name of a shipped one, see `run_config`")
    host: str = Field(description="name or IP address under which the sites reach the coordinator")
    port: int = Field(9443, ge=1, le=65535, description="port of the coordinator's proxy, the only one open to the network")
    link_port: int = Field(
        LINK_PORT,
        ge=1,
        le=65535,
        description="SuperLink's port, on loopback behind the proxy; choose another for each federation",
    )
    sites: Items[Name] = Field(min_length=1, description="names of the sites, in the order of their numbers")
    trust: Mode = "central"
    drops: int = Field(0, ge=0)
    colluders: int = Field(1, ge=0)
    deadline: float = Field(120.0, ge=0.1, le=86_400)
    broadcast: Literal["fp32", "bf16"] = "fp32"

    @classmethod
    def load(cls, path: Path) -> Project:
        """Reads a project.

        Raises:
            UserError: If the file cannot be read, has an unknown key or an impossible value, or names sites that cannot be
                distinguished.
        """
        try:
            return cls.model_validate(read_toml(path, "project"))
        except ValidationError as error:
            raise UserError(f"{path}: {first_problem(error)}. [project-invalid]") from error

    @field_validator("host")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if not is_host(host):
            raise ValueError("expected a host's name or an IP address that sites can reach, without scheme and port")
        return host

    @model_validator(mode="after")
    def _apart(self) -> Project:
        if self.port == self.link_port:
            raise ValueError(f"port: the SuperLink listens on {self.port}, behind the proxy: choose another port or link_port")
        seen: dict[str, str] = {}
        for site in self.sites:
            if (other := seen.setdefault(site.casefold(), site)) is not site:
                raise ValueError(f"sites: {other!r} and {site!r} differ at most in capitals; give each site a name of its own")
        try:
            Trust(self.trust, len(self.sites), self.drops, self.colluders)
        except UserError as error:  # now, and not when all sites have replied
            raise ValueError(error.sentence.removesuffix(".")) from error
        return self

    @property
    def address(self) -> str:
        """Address to which the sites' SuperNodes connect, HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """Options of the terms, see `Terms.agree`."""
        return self.model_dump(include={"trust", "drops", "colluders", "deadline", "broadcast"})

    def run_config(self, beside: Path) -> Config:
        """Reads the configuration of the run.

        Args:
            beside: File of the project. The configuration's file is looked up in the same folder. If it is not there,
                ``config`` is a path from the current folder, or the name of a shipped configuration.

        Raises:
            UserError: If the configuration cannot be read, or is impossible.
        """
        file = beside.parent / self.config
        return load_config(file if file.is_file() else Path(self.config))
