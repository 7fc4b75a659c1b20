"""A run in small: the processes of a cluster, a few thousand parameters, and sums that are given instead of computed.

Coordinator, ledger, releases, checkpoints, transport and loop are those of a run; no records, no evaluation. The total of a
step is the same for any number of ranks, so that what is released can be compared.
"""

import types
from pathlib import Path

import torch
from torch import nn

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.cluster.collective import Collective, Replicas
from dpfed.cluster.link import Link
from dpfed.cluster.torchrun import process_group
from dpfed.config import OptimizerConfig
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.training.checkpoint import Checkpoints, Progress
from dpfed.training.coordinator import Coordinator
from dpfed.training.releases import Releases
from dpfed.training.trainer import InProcess, train

SECRET, LENGTH, STEPS = Randomness.from_seed(7), 300, 6
PLAN = PrivacyPlan(1000, 64, 4, 0.5, STEPS, 50.0, 1e-5)
PROGRESS = {"share": 0.1, "quantile": 0.5, "loss_range": 2.0, "phase": 3}
ADAPTIVE = PrivacyPlan(1000, 64, 4, 0.5, STEPS, 1.0, 1e-5, clipping="adaptive", progress=PROGRESS)
DISCRETE = PrivacyPlan(1000, 64, 4, 0.5, STEPS, 1.0, 1e-5, noise_kind="discrete")
ADAM = OptimizerConfig(name="adam", learning_rate=0.01, ema=0.9, schedule="cosine")


def model():
    """The same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(37, 51), nn.Linear(51, 13), nn.LayerNorm(13), nn.Linear(13, 2, bias=False))


class GivenSums:
    """A rank's worker: rank 0 has all of the total, and the others have zeros.

    Args:
        rank: of this process.
        ranks: how many there are.
        plan: of the run.
        size: numbers of the sum.
    """

    def __init__(self, rank, ranks, plan, size):
        self._rank, self._plan, self._size = rank, plan, size
        self._groups, self.threshold, self.computed = plan.groups_of(rank, ranks), plan.clip_norm, []
        self.asks_about_norms = plan.statistics is not None

    def bounded_sum(self, step):
        self.computed.append(step)
        values = torch.randn(self._size, generator=torch.Generator().manual_seed(step)) * (self._rank == 0)
        return BoundedSum(values, self._plan.sensitivity, self._groups)


def toy(rank, folder, ranks, plan=PLAN, config=ADAM, hook=None, arguments=(), length=LENGTH):
    """Begins the run, or goes on with it; `hook` is called in every process before anything else.

    Args:
        rank: of this process.
        folder: of the run.
        ranks: how many processes; 0: one, without a process group.
        plan: of the run.
        config: of the optimizer.
        hook: ``hook(rank, *arguments)``.
        arguments: of the hook.
        length: of a block.
    """
    if hook is not None:
        hook(rank, *arguments)
    if ranks == 0:
        trained = model()
        worker = GivenSums(0, 1, plan, size_of(trained, plan))
        _lead(folder, plan, config, trained, length, lambda coordinator: InProcess([worker]), worker)
        return
    with process_group():
        link, trained = Link(), model()
        worker = GivenSums(link.rank, link.size, plan, size_of(trained, plan))
        parts = types.SimpleNamespace(plan=plan, model=trained, config=types.SimpleNamespace(optimizer=config))
        collective = Collective(link, Replicas(trained), worker, parts)
        if link.rank:
            for value in trained.state_dict().values():
                torch.distributed.broadcast(value, 0)
            collective.serve()
            return

        def connect(coordinator):
            for value in trained.state_dict().values():
                torch.distributed.broadcast(value, 0)
            collective.share_out(coordinator, folder / "releases")
            return collective

        try:
            _lead(folder, plan, config, trained, length, connect, worker)
        finally:
            link.announce(None)


def size_of(trained, plan):
    """Numbers of a sum."""
    return sum(parameter.numel() for parameter in trained.parameters()) + plan.statistics_count


def _lead(folder, plan, config, trained, length, connect, worker):
    path, checkpoints = folder / "ledger.jsonl", Checkpoints(folder / "checkpoints", keep=2)
    folder.mkdir(exist_ok=True)
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path, plan, block=length)
    coordinator = Coordinator(plan, trained, config, SECRET, ledger, Releases(folder / "releases"))
    start, summaries = 0, []
    if checkpoints.paths():
        start = checkpoints.resume(trained, coordinator)[0].step
    else:
        checkpoints.save(Progress(0, 0, plan.fingerprint), trained, coordinator)

    def keep(summary):
        summaries.append(summary)
        if summary.done % 2 == 0:
            coordinator.settle()
            checkpoints.save(Progress(summary.done, ledger.charged, plan.fingerprint), trained, coordinator)

    try:
        train(connect(coordinator), coordinator, range(start, plan.steps), [keep])
    except UserError as error:
        (folder / "error").write_text(str(error))
        return
    torch.save((summaries, worker.computed), folder / "told.pt")


def released(folder: Path):
    """What was paid for: digests by step, and the steps that were repeated."""
    ledger = Ledger.open(folder / "ledger.jsonl")
    return {release.step: release.digest for release in ledger._releases}, ledger.replays
