"""Makes the undisturbed run of a federation that met faults: the same parties with the same keys, in one process, no faults.

A fault may have two effects only: a site that was away is missing in a step, and a step during which the server died is charged
and discarded. So the undisturbed run takes the sites of each step from the journal of the other run, and must release the same
sums, bit for bit. It has no messages and no masks: the sites' noisy sums are simply added up.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dpfed.artifacts.directory import RunDirectory
from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.serving import site_config
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.noise import KeyedNoise
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.protocol.journal import Journal
from dpfed.protocol.terms import Terms
from dpfed.protocol.vectors import encoded, form_of_sums, grid_of, protected, sum_of
from dpfed.runs.build import build
from dpfed.runs.job import Job, create_job
from dpfed.runs.preflight import Preflight
from dpfed.runs.running import run_job
from dpfed.training.learner import Partition
from dpfed.training.worker import Worker


class Party:
    """A site's records, model and secret, without its ledger and its socket.

    Args:
        folder: Folder of the site.
        terms: Terms that the site joined.
    """

    def __init__(self, folder: SiteFolder, terms: Terms) -> None:
        self._terms, self._number = terms, terms.number_of(folder.identity().signing_key)
        self._randomness = folder.randomness()
        parts = build(site_config(terms, folder.settings()), self._randomness, terms=terms)
        partition = Partition(self._number, parts.store.split("train"), terms.sites[self._number].groups)
        self.worker: Worker = parts.learner.worker(self._randomness, partition=partition)
        self.vector = TrainableVector(parts.model)

    def noisy_sum(self, step: int, parameters: Tensor) -> bytes:
        """Returns the site's noisy sum of a step in its encoded form, without a mask."""
        terms = self._terms
        self.vector.assign(parameters)
        values = self.worker.bounded_sum(step).values
        noise = terms.trust_model.noise_of_site(terms.privacy_plan)
        if noise is None:
            return encoded(values)
        share = KeyedNoise(noise, self._randomness, "share", terms.fingerprint, self._number)
        return protected(values, step, share, grid_of(terms)).tobytes()


class Followed:
    """A `Transport` that adds up the noisy sums of those sites that took part in each step of another run.

    Args:
        terms: Terms of the federation.
        parties: Sites, by name.
        arrived: Names of the sites that took part, by step; a step without an entry is discarded.
        sent: Parameters of the coordinator.
    """

    def __init__(self, terms: Terms, parties: dict[str, Party], arrived: dict[int, list[str]], sent: TrainableVector) -> None:
        self._terms = terms
        self._parties = parties
        self._arrived = arrived
        self._sent = sent

    def aggregate(self, step: int) -> BoundedSum | None:
        """See `Transport`."""
        if step not in self._arrived:
            return None
        plan, parameters = self._terms.privacy_plan, self._sent.gather()
        names = [site.name for site in self._terms.sites if site.name in self._arrived[step]]
        sums = [self._parties[name].noisy_sum(step, parameters) for name in names]
        std = self._terms.trust_model.carried_std(plan, len(sums))
        form = form_of_sums(self._terms)
        total, unit = sum_of(sums, grid_of(self._terms), form), plan.grid_of().unit if form == "int64" else 1.0
        return BoundedSum(total, plan.sensitivity, plan.groups, std, unit)


def follow(run: RunDirectory, coordinator: Path, sites: dict[str, Path], key: bytes, folder: Path) -> RunDirectory:
    """Carries out the undisturbed run.

    Args:
        run: Finished run that met faults.
        coordinator: Folder of the coordinator.
        sites: Folders of the sites, by name.
        key: Secret key of `run`.
        folder: Folder of the undisturbed run.
    """
    torch.set_num_threads(1)  # as the sites' workers have: with more, sums are taken in another order
    party = CoordinatorFolder.open(coordinator)
    terms = Terms.load(party.terms)
    lines = {line["step"]: line for line in Journal(run.journal).lines}
    arrived = {step: line["arrived"] for step, line in lines.items() if line["event"] == "collected"}
    parties = {name: Party(SiteFolder(place), terms) for name, place in sites.items()}
    job = create_job(Preflight(party.config(), folder), Silent(), Randomness(key), terms)

    def connect(job: Job) -> Followed:
        job.run.journal.write_bytes(run.journal.read_bytes())  # the card counts each site's steps in it
        return Followed(terms, parties, arrived, TrainableVector(job.parts.model))

    with job.run.locked():
        return run_job(job, Silent(), connect)
