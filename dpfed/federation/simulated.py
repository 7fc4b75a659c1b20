"""Settings of simulated sites. This module loads without torch, so a mistake in these settings is reported at once."""

from __future__ import annotations

from pydantic import Field

from dpfed.building.plan import sketch_of
from dpfed.config import Config, Section
from dpfed.protocol.named_code import refuse_own_records, refuse_parts_of_python
from dpfed.protocol.trust import Mode, Trust


class Simulation(Section):
    """The settings of a simulated federation.

    Attributes:
        sites: Number of sites, from 2 to 1,000; default 3.
        trust: Trust mode (`dpfed.protocol.trust`); default ``central``.
        drops: Number of sites that may drop out of a step; default 0.
        colluders: Number of sites that may collude; default 1.
        skew: Degree to which the sites' records differ, from 0 to 1 (`dpfed.data.store.division`); default 0.8.
    """

    sites: int = Field(3, ge=2, le=1000)
    trust: Mode = "central"
    drops: int = Field(0, ge=0)
    colluders: int = Field(1, ge=0)
    skew: float = Field(0.8, ge=0, le=1)

    @property
    def trust_model(self) -> Trust:
        """The trust mode, with the numbers of sites that may drop out and collude.

        Raises:
            UserError: If the trust mode cannot work when so many sites drop out or collude.
        """
        return Trust(self.trust, self.sites, self.drops, self.colluders)

    def refuse(self, config: Config) -> None:
        """Refuses a federation that cannot be simulated, before any record is read.

        Raises:
            UserError: If the trust mode cannot work with these numbers of sites; if the records come from Python code; if the
                encoder, a transform or the loss was given as a Python object, or is a part of Python itself; or if the plan has
                fewer groups than sites, or a bounding method that contrasts the whole batch, which no single site holds.
        """
        self.trust_model  # noqa: B018 refuses impossible numbers
        refuse_own_records(config)
        refuse_parts_of_python(config)
        sketch_of(config).apportioned([1] * self.sites)

    def __str__(self) -> str:
        return f"{self.sites} sites ({', '.join(f'{name} {value}' for name, value in self if name != 'sites')})"
