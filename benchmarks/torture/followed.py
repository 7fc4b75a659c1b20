"""The undisturbed run of a tortured federation: the same parties with the same keys, in one process, and nothing goes wrong.

What a fault costs a federation is stated beforehand: a site that was away is missing in a step, and a step whose server died
is paid for and discarded. So the undisturbed run has the same sites in the same steps, as the tortured run's journal says, and
must release the same sums, bit for bit. It knows no messages and no masks: sums and noise are simply added up.
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
    """A site's records, model and secret, without its ledger and its door.

    Args:
        folder: of the site.
        terms: that it joined.
    """

    def __init__(self, folder: SiteFolder, terms: Terms) -> None:
        self._terms, self._number = terms, terms.number_of(folder.identity().signing_key)
        self._randomness = folder.randomness()
        parts = build(site_config(terms, folder.settings()), self._randomness, terms=terms)
        partition = Partition(self._number, parts.store.split("train"), terms.sites[self._number].groups)
        self.worker: Worker = parts.learner.worker(self._randomness, partition=partition)
        self.vector = TrainableVector(parts.model)

    def noisy_sum(self, step: int, parameters: Tensor) -> bytes:
        """The site's part of a step, as it would travel without a mask."""
        terms = self._terms
        self.vector.assign(parameters)
        values = self.worker.bounded_sum(step).values
        noise = terms.trust_model.noise_of_site(terms.privacy_plan)
        if noise is None:
            return encoded(values)
        share = KeyedNoise(noise, self._randomness, "share", terms.fingerprint, self._number)
        return protected(values, step, share, grid_of(terms)).tobytes()


class Followed:
    """A `Transport`: adds up what the same sites give in the same steps as in another run.

    Args:
        terms: of the federation.
        parties: the sites, by name.
        arrived: names of those that came, by step; a step that is not there came to nothing.
        sent: the coordinator's parameters.
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
        run: the tortured one, finished.
        coordinator: folder of the coordinator.
        sites: the sites' folders, by name.
        key: secret of the tortured run.
        folder: for the undisturbed one.
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
