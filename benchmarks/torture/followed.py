"""The undisturbed run of a tortured federation: the same parties with the same keys, in one process, and nothing goes wrong.

What a fault costs a federation is stated beforehand: a site that was away is missing in a step, and a step whose server died
is paid for and discarded. So the undisturbed run has the same sites in the same steps, as the tortured run's journal says, and
must release the same sums, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from dpfed.federation.coordinator.journal import Journal
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.folders import CoordinatorFolder, SiteFolder
from dpfed.federation.protocol.messages import alleged
from dpfed.federation.protocol.packets import Packet
from dpfed.federation.protocol.terms import Terms
from dpfed.federation.site.serving import load_site
from dpfed.federation.site.worker import SiteWorker
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.directory import RunDirectory
from dpfed.runs.job import Job, begin
from dpfed.runs.running import run_job


class Followed:
    """A `Channel` to sites in this process that answer a step only if they did so in another run.

    Args:
        sites: by name.
        arrived: names of those that answered, by step; a step that is not there came to nothing.
    """

    def __init__(self, sites: dict[str, SiteWorker], arrived: dict[int, list[str]]) -> None:
        self._sites, self._arrived = sites, arrived

    def sites(self) -> list[str]:
        """See `Channel`."""
        return list(self._sites)

    def exchange(self, packets: dict[str, Packet], seconds: float) -> Iterator[tuple[str, Packet | None]]:
        """See `Channel`."""
        for name, packet in packets.items():
            question = alleged(packet)
            asked = question.get("kind") == "step"
            there = not asked or name in self._arrived.get(question["step"], [])
            yield name, self._sites[name].answer(packet) if there else None


def follow(run: RunDirectory, coordinator: Path, sites: dict[str, Path], key: bytes, folder: Path) -> RunDirectory:
    """Carries out the undisturbed run.

    Args:
        run: the tortured one, finished.
        coordinator: folder of the coordinator.
        sites: copies of the sites' folders, as they were before the first step, by name.
        key: secret of the tortured run.
        folder: for the undisturbed one.
    """
    torch.set_num_threads(1)  # as the sites' workers have: with more, sums are taken in another order
    party = CoordinatorFolder.open(coordinator)
    terms = Terms.load(party.terms)
    lines = {line["step"]: line for line in Journal(run.journal).lines}
    arrived = {step: line["arrived"] for step, line in lines.items() if line["event"] == "collected"}
    workers = {name: load_site(SiteFolder(place), lambda text: None) for name, place in sites.items()}

    def connect(job: Job) -> Federation:
        journal, paid = Journal(job.run.journal), Ledger.open(job.run.ledger)
        channel = Followed(workers, arrived)
        return Federation(terms, party.identity(), channel, job.parts.model, journal, paid, lambda text: None)

    job = begin(party.config(), folder, Silent(), randomness=Randomness(key), terms=terms)
    with job.run.locked():
        return run_job(job, Silent(), connect)
