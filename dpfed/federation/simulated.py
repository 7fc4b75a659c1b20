"""What is simulated where institutions are: light, so that a mistake in it is answered before torch is imported."""

from __future__ import annotations

from pydantic import Field

from dpfed.building.plan import sketch_of
from dpfed.config import Config, Section
from dpfed.protocol.named_code import refuse_own_records, refuse_parts_of_python
from dpfed.protocol.trust import Mode, Trust


class Simulation(Section):
    """How many sites, what they agree on, and how unlike their records are."""

    sites: int = Field(3, ge=2, le=1000)
    trust: Mode = "central"
    drops: int = Field(0, ge=0)
    colluders: int = Field(1, ge=0)
    skew: float = Field(0.8, ge=0, le=1, description="how unlike the sites' records are, see `dpfed.data.store.division`")

    @property
    def trust_model(self) -> Trust:
        """Who adds the noise.

        Raises:
            UserError: if so many sites cannot drop out or collude.
        """
        return Trust(self.trust, self.sites, self.drops, self.colluders)

    def refuse(self, config: Config) -> None:
        """Refuses what cannot be simulated, before any record is read.

        Raises:
            UserError: saying what to change.
        """
        self.trust_model  # noqa: B018 refuses numbers that cannot be
        refuse_own_records(config)
        refuse_parts_of_python(config)
        sketch_of(config).apportioned([1] * self.sites)

    def __str__(self) -> str:
        return f"{self.sites} sites ({', '.join(f'{name} {value}' for name, value in self if name != 'sites')})"
