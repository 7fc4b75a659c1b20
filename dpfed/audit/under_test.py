"""The mechanism of a run at a small scale: its plan, workers, transport, coordinator and ledger, with a model of canaries.

Noise multiplier, clip norm, method, optimizer and the number of workers are the run's own. But the optimizer has no warm-up
and no averaged weights, and adaptive clipping becomes fixed clipping. The audit chooses the sampling rate. The numbers of
records in the data set, in a batch and in a group are smaller: at a given sampling rate and noise multiplier, epsilon does not
depend on them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from dpfed.audit.canaries import SIDE, CanaryModel, write_canaries, write_public
from dpfed.audit.leaving import Leaving, ReleasesInMemory, Watched
from dpfed.building.engine import engine_for
from dpfed.config import Config, parse_config
from dpfed.data.sampling import partition_keys
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import Parts, build
from dpfed.training.learner import Partition
from dpfed.training.loop import train
from dpfed.training.transport import InProcess
from dpfed.training.worker import indices_of_rank

_PUBLIC = 64  # number of stored public records, for methods that add public records to groups
_BOUNDING = ("method", "clip_norm", "options", "engine", "microbatch")


@dataclass(frozen=True)
class Scale:
    """The size of the small run.

    Attributes:
        records: Number of fillers and canaries together, N; a canary counts once, even if it is a unit of several records.
        batch: Expected batch size, B; B/N is the sampling rate.
        group_size: Expected group size, S.
        steps: Number of steps, T.
    """

    records: int
    batch: int
    group_size: int
    steps: int

    @classmethod
    def of(cls, rate: float, batch: int, group_size: int, steps: int) -> Scale:
        """Makes a scale whose sampling rate is as close to `rate` as whole numbers of records allow, and not above it."""
        return cls(max(batch, int(np.ceil(batch / rate - 1e-9))), batch, group_size, steps)


@dataclass(frozen=True)
class UnderTest:
    """A mechanism that is ready to be attacked.

    Attributes:
        parts: Parts of the small run.
        model: Model of canaries, in place of the run's model.
        fillers: Number of records that are always present, F; the canaries precede them in the store.
        canaries: Number of canaries, m.
        world_size: Number of workers that share the records.
        folder: Folder for ledgers.
    """

    parts: Parts
    model: CanaryModel
    fillers: int
    canaries: int
    world_size: int
    folder: Path

    @classmethod
    def build(
        cls, config: Config, plan: PrivacyPlan, scale: Scale, canaries: int, folder: Path, world_size: int = 1
    ) -> UnderTest:
        """Makes a small run that imitates a given run.

        Args:
            config: Configuration of the given run.
            plan: Plan of the given run.
            scale: Size of the small run.
            canaries: Number of canaries among its records.
            folder: Folder for its records and ledgers.
            world_size: Number of workers that share the records.
        """
        by_unit = plan.promise.unit == "user"
        copies = plan.sampling.per_unit + 1 if by_unit else 1
        store = write_canaries(folder / "records", scale.records - canaries, canaries, copies)
        if plan.bounding.method.public_records:
            write_public(folder / "public", _PUBLIC)
        bounding, method = config.bounding.model_dump(include=set(_BOUNDING)), plan.bounding.method
        if bounding["engine"] == "auto" and method.picks_engine:
            bounding["engine"] = "loop"
        if method.picks_engine and not method.public_records:
            bounding["group_size"] = scale.group_size
        if method.capped:
            bounding["max_batch"] = scale.batch  # the noise is scaled to the cap, so the cap is as low as possible
        tree = {
            "name": "audit",
            "data": {"source": "store", "path": str(store.path), "size": SIDE},
            "model": {"kind": "image", "width": 4, "embedding": 4, "head_hidden": 4},
            "objective": {"temperature": plan.bounding.options.get("temperature", 1.0)},
            "bounding": bounding,
            "privacy": {
                **{"noise_multiplier": plan.noise.multiplier, "noise": plan.noise.kind},
                **{"delta": plan.promise.delta, "accountant": plan.promise.accountant},
                **{"batch": scale.batch, "steps": scale.steps},
                **({"unit": "user", "per_unit": plan.sampling.per_unit} if by_unit else {}),
            },
            "optimizer": config.optimizer.model_dump(exclude={"warmup", "ema"}),
            "training": {"device": "cpu"},
            "evaluation": {"split": "none"},
        }
        if method.public_records:
            public = {"records": plan.bounding.options["public_records"], "centring": 0.0, "path": str(folder / "public")}
            tree["public"] = public
        parts = build(parse_config(tree), Randomness.from_seed(0))
        parts = parts.with_learner(plan=_as_clipped_and_told(parts.plan, plan))
        fillers = scale.records - canaries
        return cls(parts, CanaryModel(fillers, 1, "one"), fillers, canaries, world_size, folder)

    def present(self, coins: np.ndarray) -> np.ndarray:
        """Returns the rows of the present records: all fillers, and the canaries whose coin is true.

        Args:
            coins: Presence of each canary, ``(m,)`` bool.
        """
        copies = (len(self.parts.store) - self.fillers) // max(1, self.canaries)
        return np.flatnonzero(np.concatenate([np.repeat(coins, copies), np.ones(self.fillers, bool)]))

    def with_model(self, model: CanaryModel, engine: str | None = None) -> UnderTest:
        """Returns the mechanism with another model of canaries, and with another engine if the method allows a choice.

        Args:
            model: Model of canaries.
            engine: Name of the engine; ``None``: the mechanism keeps its engine.
        """
        config = self.parts.config
        if engine is not None and self.parts.plan.bounding.method.picks_engine:
            config = config.model_copy(update={"bounding": config.bounding.model_copy(update={"engine": engine})})
        parts = self.parts.with_learner(engine=functools.partial(engine_for, config=config))
        return dataclasses.replace(self, parts=dataclasses.replace(parts, config=config), model=model)

    def sums(self, present: np.ndarray, randomness: Randomness) -> Iterator[Tensor]:
        """Yields each step's sum without noise, ``(P,)``.

        An adversary who knows these records and the randomness of the workers can compute these sums.

        Args:
            present: Rows of the present records.
            randomness: Randomness of the workers.
        """
        model = copy.deepcopy(self.model)
        transport = workers(self.parts.with_learner(model=model), present, self.world_size, randomness)
        for step in range(self.parts.plan.steps):
            _turn(model, step)
            yield transport.aggregate(step).numbers()

    def live(self, present: np.ndarray, randomness: Randomness, noise: Randomness) -> Iterator[Leaving]:
        """Trains, and yields the outputs of the mechanism after each step, ``(P,)`` float64 by channel.

        Args:
            present: Rows of the present records.
            randomness: Randomness of the workers.
            noise: Randomness of the coordinator.
        """
        model, kept = copy.deepcopy(self.model), ReleasesInMemory()
        parts = self.parts.with_learner(model=model)
        ledger = Ledger.create(self.folder / f"{secrets.token_hex(8)}.jsonl", parts.plan)
        coordinator = parts.learner.coordinator(noise, ledger, kept)
        transport = workers(parts, present, self.world_size, randomness)
        watched = Watched(coordinator, model, parts.plan.divisor)
        for step in range(parts.plan.steps):
            _turn(model, step)
            train(transport, coordinator, [step])
            yield {"noisy sums": kept.taken(), **watched.step()}

    def partitions(self, present: np.ndarray) -> list[Partition]:
        """Returns the records and groups of each worker; see the function `partitions`."""
        return partitions(self.parts, present, self.world_size)


def partitions(parts: Parts, rows: np.ndarray, world_size: int) -> list[Partition]:
    """Returns the records and groups of each worker.

    Either all workers have all records and divide the groups, or the records are divided among the workers
    (`dpfed.training.learner.Learner.divides_groups`).

    Args:
        parts: Parts of a run.
        rows: Rows of the records in the store.
        world_size: Number of workers.
    """
    keys, plan = partition_keys(parts.store, parts.config.privacy.unit), parts.plan
    if parts.learner.divides_groups:
        return [Partition(rank, rows, plan.groups_of(rank, world_size), world_size) for rank in range(world_size)]
    return [
        Partition(rank, indices_of_rank(rows, keys, rank, world_size), plan.groups_of(rank, world_size))
        for rank in range(world_size)
    ]


def workers(parts: Parts, rows: np.ndarray, world_size: int, randomness: Randomness) -> InProcess:
    """Makes all workers in this process. Together they have the given rows of the store."""
    divided = partitions(parts, rows, world_size)
    return InProcess([parts.learner.worker(randomness, partition) for partition in divided])


def _as_clipped_and_told(small: PrivacyPlan, plan: PrivacyPlan) -> PrivacyPlan:
    """Returns the small plan with the run's clipping rule and private progress.

    Adaptive clipping becomes fixed: an adaptive threshold depends on the noise, and `sums` computes the sums without noise.
    """
    clipping = "fixed" if plan.bounding.clipping == "adaptive" else plan.bounding.clipping
    progress = plan.as_dict()["progress"]
    progress |= {"phase": small.steps} if progress else {}
    return small.replace(clipping=clipping, stability=plan.bounding.stability, progress=progress)


def _turn(model: CanaryModel, step: int) -> None:
    """Sets the sign of all gradients in a step; the sign alternates from step to step.

    If a faulty mechanism added the same noise in every step, the noise would then cancel in the scores.
    """
    model.sign.fill_(sign_of(step))


def sign_of(step: int) -> float:
    """Returns the sign of all gradients in a step, +1 or -1."""
    return 1.0 - 2.0 * (step % 2)
