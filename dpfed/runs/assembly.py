"""Puts a run's parts together: from a configuration to store, plan, model, worker and coordinator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from dpfed.bounding.engines import Engine, GroupBatch, fastest_engine, require_fitting, require_fp32
from dpfed.config import Config
from dpfed.data.opening import open_records
from dpfed.data.sampling import owner_keys, protected_count, unit_keys
from dpfed.data.store.records import RecordStore
from dpfed.data.views.batches import ViewMaker
from dpfed.data.views.images import ImageViews
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.data.views.texts import TextViews
from dpfed.errors import UserError
from dpfed.evaluation.suite import Evaluation, Which, evaluate, tasks_of
from dpfed.models.building import Tokenizer, build_model, image_size, preprocessing_of, settled, tokenizer_for
from dpfed.models.norm import refuse_mixing
from dpfed.models.validation import check_independence, random_group, validate
from dpfed.objectives import loss_of
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.method import Build, Method, method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent, Watcher, import_progress
from dpfed.runs.foresight import foresee, guarded, refuse_many_owners
from dpfed.training.checkpoint import load_weights
from dpfed.training.coordinator import Coordinator
from dpfed.training.memory import require_memory
from dpfed.training.post_processing import post_processors
from dpfed.training.releases import Releases
from dpfed.training.worker import GroupObserver, Worker, rows_of_owner

if TYPE_CHECKING:
    from dpfed.federation.protocol.terms import Terms


_MOST_TRIED, _PIXELS_TRIED = 64, 64 * 64 * 64  # see `_largest_pass`: 64 records of 64 pixels, or fewer larger ones


@dataclass(frozen=True)
class Share:
    """What of the training is one data owner's.

    Attributes:
        owner: the owner's number.
        rows: ``(n,)`` of the store, its training records.
        groups: K_w, its part of the K groups.
    """

    owner: int
    rows: np.ndarray
    groups: int


@dataclass(frozen=True)
class Components:
    """The public parts of a run: everything that needs no secret key.

    Attributes:
        config: with nothing left to choose.
        store: the records.
        plan: what is promised.
        model: on its device (the CPU if it is sharded for training), at its initial weights until a checkpoint is loaded.
        views: random and plain image views.
        tokenizer: for models that read text.
        preprocessing: what the image tower expects.
        owner: which of the data owners this process is: 0 .. owners - 1.
        owners: how many there are; they share the plan's K groups.
        terms: of the federation, if there is one; then the plan is the federation's, and the store this party's own.
    """

    config: Config
    store: RecordStore
    plan: PrivacyPlan
    model: nn.Module
    views: ImageViews
    tokenizer: Tokenizer | None
    preprocessing: Preprocessing = Preprocessing()
    owner: int = 0
    owners: int = 1
    terms: Terms | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def read(self, rows: np.ndarray) -> torch.Tensor:
        """Images of rows of the store, as the model wants them: uint8 ``(n, 3, size, size)``."""
        wanted = self.preprocessing
        return self.store.images(rows, image_size(self.config), resize=wanted.resize, interpolation=wanted.interpolation)

    def view_maker(self, augmentations: int | None = None) -> ViewMaker:
        """Makes the views of training.

        Args:
            augmentations: N_a, further views of each image; default: those of the configuration.
        """
        count = _views_per_image(self.config, augmentations)
        return ViewMaker(self.store, self.read, self.views, count, self.tokenizer, TextViews(self.config.text_views))

    def worker(
        self,
        randomness: Randomness,
        observe: GroupObserver | None = None,
        model: nn.Module | None = None,
        engine: Engine | None = None,
        share: Share | None = None,
    ) -> Worker:
        """The worker of a data owner.

        Args:
            randomness: the owner's.
            observe: receives raw, private figures.
            model: to be trained, if not `model` itself but a copy or a sharded form of it.
            engine: of that model; default: the configured one.
            share: what is this owner's; default: what `owner` and `owners` say.
        """
        units = unit_keys(self.store, self.config.privacy)
        model, share = model or self.model, share or self._share()
        rows = share.rows
        return Worker(
            plan=self.plan,
            model=model,
            engine=engine or self.plan.how.engine(Build(model, self.plan, self.config, randomness, share.owner)),
            views=self.view_maker(),
            rows=rows,
            keys=self.store.keys[rows],
            randomness=randomness,
            microbatch=self.config.bounding.microbatch,
            owner=share.owner,
            groups=share.groups,
            owners=self.owners if self.terms is None else len(self.terms.sites),
            observe=observe,
            units=None if units is None else units[rows],
        )

    def _share(self) -> Share:
        rows = rows_of_owner(self.store.split("train"), owner_keys(self.store, self.config.privacy), self.owner, self.owners)
        return Share(self.owner, rows, self.plan.groups_of(self.owner, self.owners))

    def dummy_batch(self, device: torch.device) -> GroupBatch:
        """Noise in the shape of a microbatch: as many groups, of sizes that vary as they will."""
        text = (self.tokenizer.vocabulary, self.tokenizer.context) if self.tokenizer else None
        return _dummy_batch(self.config, self.plan, text, device)

    def coordinator(self, randomness: Randomness, ledger: Ledger, releases: Releases | None = None) -> Coordinator:
        """The run's coordinator."""
        return Coordinator(self.plan, self.model, self.config.optimizer, randomness, ledger, releases)

    def load_weights(self, checkpoint: Path) -> None:
        """Gives the model the weights of a checkpoint that are measured and published.

        Raises:
            UserError: if the checkpoint is damaged or belongs to another model.
        """
        load_weights(checkpoint, self.model, post_processors(self.config.optimizer, self.model))

    def evaluate(self, which: Which, step: int) -> list[Evaluation]:
        """Measures the model as it is now."""
        return evaluate(
            self.model, self.store, self.read, self.config, self.views.plain, self.tokenizer, which, step, self.device
        )


def assemble(
    config: Config,
    randomness: Randomness | None = None,
    watcher: Watcher | None = None,
    owner: int = 0,
    owners: int = 1,
    terms: Terms | None = None,
) -> Components:
    """Builds the parts of a run and checks everything that can be checked before any budget is spent.

    What needs no records is checked before any is read, generated or imported: that may take hours.

    Args:
        config: as the user wrote it, or a resolved one.
        randomness: gives the initial weights; ``None`` when a checkpoint or a saved model will be loaded over them.
        watcher: is told what is done, and sees how far an import is.
        owner: which of the data owners this process is.
        owners: how many share the plan's groups.
        terms: of the federation that this process is a party of: they hold the plan.

    Raises:
        UserError: for an impossible plan, more owners than groups, unreadable records, a model that mixes records, an
            impossible evaluation.
    """
    device = pick_device(config.training.device)
    # On GPUs TF32 rounds products in convolutions to 11 bits, so that a norm and the gradient that it clips, which different
    # operations compute, could differ by a thousandth.
    torch.backends.cudnn.allow_tf32 = False
    watcher = watcher or Silent()
    foreseen = terms.privacy_plan if terms else foresee(config, owners=owners)
    config = settled(config)
    require_memory(config, device)
    tokenizer = tokenizer_for(config.model)
    preprocessing = preprocessing_of(config)
    watcher.note("building the model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.seed("initialise", 0) if randomness else 0)
        model = build_model(
            config.model, config.objective, config.adaptation, config.data.size, load_weights=randomness is not None
        )
    validate(model)
    how = method_named(config.bounding.method)
    _check_engine(config, how)
    if not how.picks_engine:
        refuse_mixing(model, f"bounding.method = '{how.name}'")
    if config.bounding.engine not in ("auto", "loop"):
        refuse_mixing(model, f"bounding.engine = '{config.bounding.engine}'")
    text = (tokenizer.vocabulary, tokenizer.context) if tokenizer else None
    with torch.random.fork_rng(devices=[]):
        tried = _largest_pass(config, foreseen or PrivacyPlan.sketch(config))
        check_independence(model, random_group(image_size(config), text, records=2), tried)
    watcher.note(f"opening the records: {_source(config)}")
    progress = guarded(import_progress(watcher), config) if terms is None else None
    store = open_records(config.data, progress, owner, owners, preprocessing.interpolation)
    if config.model.reads_text and store.kind != "image-text":
        raise UserError(f"model.kind = '{config.model.kind}' needs captions, and the records of {store.name} have none.")
    if terms:
        plan = terms.privacy_plan
    else:
        records = protected_count(store, config.privacy)
        if foreseen is None:
            watcher.note(f"accounting for {records:,} records")
        plan = PrivacyPlan.from_config(records, config)
        plan.require_finite()
    refuse_many_owners(plan, owners)
    tasks_of(store, config)
    sharded = config.training.sharding != "none"
    model.to("cpu" if sharded else device)
    engine: str = config.bounding.engine
    chosen_on = (config.training.precision, loss_of(config.objective))
    if engine == "layerwise" and not sharded:  # it has rules for kinds of layers, and must not misread one
        require_fitting(engine, model, _dummy_batch(config, plan, text, device), *chosen_on)
    if engine == "auto" and plan.how.picks_engine and not sharded:  # a sharded model has its own engine
        watcher.note("timing the engines: which is the fastest for this model on this machine")
        engine = fastest_engine(model, _dummy_batch(config, plan, text, device), *chosen_on)
        config = config.model_copy(update={"bounding": config.bounding.model_copy(update={"engine": engine})})
    config = config.model_copy(update={"training": config.training.model_copy(update={"device": device.type})})
    views = ImageViews(config.views, preprocessing)
    return Components(config, store, plan, model, views, tokenizer, preprocessing, owner, owners, terms)


def _source(config: Config) -> str:
    data = config.data
    if data.source == "shapes":
        return f"{data.records:,} generated shapes"
    return f"{data.source} at {data.path}" if data.path else data.source


def _largest_pass(config: Config, plan: PrivacyPlan) -> int:
    """Records of a pass that is about as large as training will make, as far as trying it out is cheap."""
    expected = plan.batch if plan.how.whole_batch else plan.group_size
    records = min(expected + math.ceil(4 * math.sqrt(expected)), plan.cap or plan.records)
    if plan.how.whole_batch:
        records = min(records, config.bounding.microbatch)
    return min(records, _MOST_TRIED, _PIXELS_TRIED // image_size(config) ** 2)


def _check_engine(config: Config, how: Method) -> None:
    """Methods with an engine of their own have no choice of one, and others none in bf16."""
    if how.picks_engine:
        if config.bounding.engine not in ("auto", "loop"):
            require_fp32(config.bounding.engine, config.training.precision)
        return
    if config.bounding.engine != "auto":
        raise UserError(f"bounding.method = '{how.name}' has its own engine: leave bounding.engine out.")
    if config.training.sharding != "none":
        raise UserError(f"training.sharding needs bounding.method = 'group' or 'none', got '{how.name}'.")


def _views_per_image(config: Config, augmentations: int | None = None) -> int:
    further = config.objective.augmentations if augmentations is None else augmentations
    return further + (1 if config.model.reads_text else 2)


def pick_device(name: str) -> torch.device:
    """The device that a configuration asks for; ``auto`` takes cuda, then mps, then cpu.

    Raises:
        UserError: if it is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, there in available.items() if there)
    if not available[name]:
        there = [device for device, is_there in available.items() if is_there]
        raise UserError(f"training.device = '{name}', but this machine has only: {', '.join(there)}.")
    return torch.device(name)


def _dummy_batch(config: Config, plan: PrivacyPlan, text: tuple[int, int] | None, device: torch.device) -> GroupBatch:
    """See `Components.dummy_batch`."""
    groups = max(1, min(plan.groups, config.bounding.microbatch // plan.group_size, 128))
    generator = torch.Generator().manual_seed(0)
    sizes = torch.poisson(torch.full((groups,), float(plan.group_size)), generator=generator).clamp(1).int()
    records, size = int(sizes.sum()), image_size(config)
    count = _views_per_image(config)
    views = {"image": torch.randn(records, count, 3, size, size, generator=generator).to(device)}
    if text:
        vocabulary, context = text
        texts = count if TextViews(config.text_views).active else 1
        views["text"] = torch.randint(1, vocabulary, (records, texts, context), generator=generator).to(device)
    return GroupBatch(views, [0, *sizes.cumsum(0).tolist()])
