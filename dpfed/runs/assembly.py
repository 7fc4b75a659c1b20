"""Puts a run's parts together: from a configuration to store, plan, model, worker and coordinator."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from dpfed.bounding.engines import GroupBatch, exact_arithmetic, require_fitting
from dpfed.building.engine import engine_for
from dpfed.building.images import image_size
from dpfed.building.method import group_loss
from dpfed.building.model import model_of
from dpfed.building.plan import plan_of, sketch_of
from dpfed.config import AdaptationConfig, Config
from dpfed.config.configuration import ResolvedConfig
from dpfed.data.public_records import PublicNegatives
from dpfed.data.sampling import PartitionRows, partition_keys, protected_count, unit_keys
from dpfed.data.store.records import RecordStore
from dpfed.data.views.batches import ViewMaker
from dpfed.data.views.images import ImageViews
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.data.views.texts import TextViews
from dpfed.errors import UserError
from dpfed.evaluation.suite import Evaluation, Which, evaluate
from dpfed.evaluation.tasks import tasks_of
from dpfed.features.cache import Features
from dpfed.features.extraction import features_of
from dpfed.features.towers import from_features, frozen_towers
from dpfed.features.views import CachedViews
from dpfed.models.building import Tokenizer, tokenizer_for
from dpfed.models.images import preprocessing_of
from dpfed.models.norm import refuse_mixing
from dpfed.models.parameters import TrainableVector
from dpfed.models.summary import image_start_of
from dpfed.models.validation import check_independence, random_group, validate
from dpfed.privacy.blocks import block_length
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent, Watcher, import_progress, signs_of_life
from dpfed.runs.closed_form import FeatureViews, add_moment_heads
from dpfed.runs.dummy_batch import dummy_batch, largest_pass, views_per_image
from dpfed.runs.memory import require_memory
from dpfed.runs.preflight import guarded, refuse_too_many_ranks, refuse_uncaptioned
from dpfed.runs.records import public_records_of, records_of
from dpfed.runs.starts import starting_weights
from dpfed.training.checkpoint import load_weights
from dpfed.training.coordinator import Coordinator
from dpfed.training.post_processing import post_processors
from dpfed.training.private_metrics import PrivateMetrics
from dpfed.training.releases import Releases
from dpfed.training.worker import Worker

if TYPE_CHECKING:
    from dpfed.protocol.terms import Terms


FeatureCache = tuple[Path, Watcher]


@dataclass(frozen=True)
class Partition:
    """The part of the training that one worker does.

    Attributes:
        rank: the worker's number.
        indices: ``(n,)`` of the store, records from which its groups are drawn, or which rows of the store these are.
        groups: K_w, its part of the K groups.
        world_size: among how many workers on the same records the K groups are divided; 1: its records are its own.
    """

    rank: int
    indices: np.ndarray | PartitionRows
    groups: int
    world_size: int = 1


@dataclass(frozen=True)
class Components:
    """The public parts of a run: everything that needs no secret key.

    Attributes:
        config: of the run.
        store: the records.
        plan: what is promised.
        model: on its device, at its initial weights until a checkpoint is loaded.
        views: random and plain image views.
        tokenizer: for models that read text.
        preprocessing: what the image tower expects.
        rank: which of the processes this one is: 0 .. world_size - 1.
        world_size: how many there are; they share the plan's K groups.
        terms: of the federation, if there is one; then the plan is the federation's, and the store this party's own.
        public: the public records that join every group, where the method has any.
        feature_cache: where features of frozen towers stay until the run ends; ``None``: as long as their worker is there.
    """

    config: ResolvedConfig
    store: RecordStore
    plan: PrivacyPlan
    model: nn.Module
    views: ImageViews
    tokenizer: Tokenizer | None
    preprocessing: Preprocessing = Preprocessing()
    rank: int = 0
    world_size: int = 1
    terms: Terms | None = None
    public: RecordStore | None = None
    feature_cache: FeatureCache | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def block(self) -> int | None:
        """Numbers of a block of a new run's sums (`dpfed.privacy.blocks`). A federation's are one block each."""
        size = TrainableVector(self.model).numel + self.plan.statistics_count
        return block_length(size) if self.terms is None else None

    def read(self, indices: np.ndarray) -> torch.Tensor:
        """Images of indices of the store, as the model expects them: uint8 ``(n, 3, size, size)``."""
        return self._read(self.store, indices)

    def _read(self, store: RecordStore, indices: np.ndarray) -> torch.Tensor:
        wanted = self.preprocessing
        return store.images(indices, image_size(self.config), resize=wanted.resize, interpolation=wanted.interpolation)

    def view_maker(self, augmentations: int | None = None) -> ViewMaker:
        """Makes the views of training.

        Args:
            augmentations: N_a, further views of each image; default: those of the configuration.
        """
        return self._views_of(self.store, views_per_image(self.config, augmentations))

    def _views_of(self, store: RecordStore, count: int) -> ViewMaker:
        read, texts = functools.partial(self._read, store), TextViews(self.config.text_views)
        return ViewMaker(store, read, self.views, count, self.tokenizer, texts)

    def _training_views(self, store: RecordStore, rows: np.ndarray | PartitionRows) -> ViewMaker:
        """Views of training for what the worker's model reads: images, or features of a frozen tower."""
        if self.plan.bounding.method.closed_form:
            views = self.plan.bounding.options["views"]
            return FeatureViews(self._features_of(store, rows, views), max(1, views), self.tokenizer is not None)
        made, cached = self._views_of(store, views_per_image(self.config)), self.config.cached_views
        if not cached:
            return made
        features = self._features_of(store, rows, cached)
        return CachedViews(made, features, cached, frozen_towers(self.model).text is not None)

    def _features_of(self, store: RecordStore, rows: np.ndarray | PartitionRows, views: int) -> Features:
        """Features of frozen towers; see `dpfed.features.extraction.features_of`."""
        folder, watcher = self.feature_cache or (None, None)
        return features_of(replace(self, store=store), np.asarray(rows), folder, views, watcher)

    def _public_negatives(self) -> PublicNegatives | None:
        """The public records that join every group."""
        if self.public is None:
            return None
        rows = self.public.split("train")
        return PublicNegatives(self._training_views(self.public, rows), rows, self.config.public.records)

    def worker(self, randomness: Randomness, model: nn.Module | None = None, partition: Partition | None = None) -> Worker:
        """The worker of a rank or a site.

        Args:
            randomness: the workers'.
            model: to be trained, if not `model` itself but a copy of it.
            partition: what is this worker's; default: what `rank` and `world_size` say.
        """
        units = unit_keys(self.store, self.config.privacy.unit)
        model, partition = model or self.model, partition or self.partition()
        indices, keys = partition.indices, self.store.keys
        if not isinstance(indices, PartitionRows):
            keys, units = keys[indices], None if units is None else units[indices]
        if self.config.cached_views and not self.plan.bounding.method.closed_form:
            model = from_features(model)
        return Worker(
            plan=self.plan,
            model=model,
            engine=engine_for(model, self.plan, self.config, randomness, partition.rank),
            views=self._training_views(self.store, indices),
            indices=indices,
            keys=keys,
            randomness=randomness,
            microbatch=self.config.bounding.microbatch,
            rank=partition.rank,
            groups=partition.groups,
            world_size=partition.world_size,
            noise_shares=noise_shares_of(self.terms),
            units=units,
            public_negatives=self._public_negatives(),
        )

    def partition(self) -> Partition:
        """What `rank` and `world_size` say: this worker's part of the groups, and of the records."""
        groups = self.plan.groups_of(self.rank, self.world_size)
        if self.divides_groups:
            return Partition(self.rank, PartitionRows(self.store, self.store.keys), groups, self.world_size)
        own = PartitionRows(self.store, partition_keys(self.store, self.config.privacy.unit), self.rank, self.world_size)
        return Partition(self.rank, own, groups)

    @property
    def divides_groups(self) -> bool:
        """Whether several workers on the same records divide the groups of a step. Then the groups, and their sum, are the same
        for any number of workers. Otherwise each has records of its own: where every record makes a group, which comes to the
        same, and where features of frozen towers are computed once, each record's by one worker."""
        return not self.plan.bounding.method.singleton_groups and not self.config.cached_views

    def dummy_batch(self, device: torch.device) -> GroupBatch:
        """Noise in the shape of a microbatch: as many groups, of sizes that vary as they will."""
        towers = frozen_towers(self.model) if self.config.cached_views else None
        return dummy_batch(self.config, self.plan, self.tokenizer, device, towers)

    def coordinator(self, randomness: Randomness, ledger: Ledger, releases: Releases | None = None) -> Coordinator:
        """The run's coordinator."""
        noise_std, config = noise_std_of(self.plan, self.terms), self.config.optimizer
        return Coordinator(self.plan, self.model, config, randomness, ledger, releases, noise_std)

    def load_weights(self, checkpoint: Path) -> None:
        """Gives the model the weights of a checkpoint that are measured and published.

        Raises:
            UserError: if the checkpoint is damaged or belongs to another model.
        """
        private_metrics = [PrivateMetrics(self.plan)] if self.plan.statistics else []
        load_weights(checkpoint, self.model, [*private_metrics, *post_processors(self.config.optimizer, self.model)])

    def evaluate(self, which: Which, step: int) -> list[Evaluation]:
        """Measures the model as it is now."""
        options, tasks = self.config.evaluation, tasks_of(self.store, self.config.evaluation, self.config.model)
        return evaluate(
            self.model, self.store, self.read, options, tasks, self.views.plain, self.tokenizer, which, step, self.device
        )


def assemble(
    config: ResolvedConfig,
    randomness: Randomness | None = None,
    watcher: Watcher | None = None,
    rank: int = 0,
    world_size: int = 1,
    terms: Terms | None = None,
    plan: PrivacyPlan | None = None,
) -> Components:
    """Builds the parts of a run and checks everything that can be checked before any budget is spent.

    Args:
        config: resolved (`dpfed.runs.resolution.resolve`).
        randomness: gives the initial weights; ``None`` when a checkpoint or a saved model will be loaded over them.
        watcher: learns what is done, and sees how far an import is.
        rank: which of the processes this one is.
        world_size: how many share the plan's groups.
        terms: of the federation that this process is a party of: they hold the plan.
        plan: that other records were counted for, where these records stand in for them (`dpfed.planning.proxy`).

    Raises:
        UserError: for an impossible plan, more workers than groups, starting weights that are not there or do not fit,
            unreadable records, a model that mixes records, an impossible evaluation.
    """
    exact_arithmetic()
    device, watcher = torch.device(config.training.device), watcher or Silent()
    method, engine = method_named(config.bounding.method), config.bounding.engine
    agreed = terms.privacy_plan if terms else plan
    require_memory(config, device)
    tokenizer = tokenizer_for(config.model)
    _refuse_cached(config)
    watcher.note("building the model")
    model = _built(config, randomness)
    with (
        torch.random.fork_rng(devices=[]),
        signs_of_life(watcher.note, "trying the model on noise: does a record change others?"),
    ):
        tried = largest_pass(config, agreed or sketch_of(config))
        text = (tokenizer.vocabulary, tokenizer.context) if tokenizer else None
        check_independence(model, random_group(image_size(config), text, records=2), tried)
    watcher.note(f"opening the records: {_source(config)}")
    progress = guarded(import_progress(watcher), config) if agreed is None else None
    store = records_of(config, progress, watcher.note)
    refuse_uncaptioned(store.kind, store.name, config)
    if agreed:
        plan = agreed
    else:
        plan = plan_of(protected_count(store, config.privacy.unit), config)
        plan.require_finite()
    refuse_too_many_ranks(plan, world_size)
    tasks_of(store, config.evaluation, config.model)
    public = public_records_of(config, store, import_progress(watcher, "public records"))
    if method.closed_form:
        add_moment_heads(model, config, plan, noise_std_of(plan, terms) or plan.noise_std, tokenizer, noise_shares_of(terms))
    model.to(device)
    preprocessing = preprocessing_of(config.model, config.data.resize)
    views = ImageViews(config.views, preprocessing)
    parts = Components(config, store, plan, model, views, tokenizer, preprocessing, rank, world_size, terms, public)
    if engine == "layerwise":  # it has rules for kinds of layers, and must not misread one
        trained = from_features(model) if config.cached_views else model
        require_fitting(trained, parts.dummy_batch(device), config.training.precision, group_loss(config))
    return parts


def _built(config: ResolvedConfig, randomness: Randomness | None) -> nn.Module:
    """The model at its initial weights, refused if its layers mix records; see `assemble`."""
    method, engine, fresh = method_named(config.bounding.method), config.bounding.engine, randomness is not None
    start = starting_weights(config) if fresh else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.seed("initialise", 0) if randomness else 0)
        frozen = AdaptationConfig(image="frozen", text="frozen") if method.closed_form else None
        model = model_of(config, fresh, start, frozen)
    validate(model)
    if not method.picks_engine:
        refuse_mixing(model, f"bounding.method = '{method.name}'")
    if engine not in ("auto", "loop"):
        refuse_mixing(model, f"bounding.engine = '{engine}'")
    return model


def _refuse_cached(config: Config) -> None:
    """Refuses features that are computed once where they are worth nothing, or too few.

    Raises:
        UserError: naming what to set.
    """
    cached, needed = config.cached_views, views_per_image(config)
    if 0 < cached < needed:
        raise UserError(f"a step contrasts {needed} views, and views.cached = {cached}: set {needed} or more. [run-views-few]")
    if cached and image_start_of(config.model) == "random":
        raise UserError(
            "views.cached computes the features of a frozen image tower once, and its weights are random: set model.weights or "
            "model.start. [run-views-random]"
        )


def noise_shares_of(terms: Terms | None) -> int:
    """How many parties add the noise together, see `PrivacyPlan.noise_of`."""
    return terms.trust_model.honest if terms is not None and terms.trust_model.shared else 1


def noise_std_of(plan: PrivacyPlan, terms: Terms | None) -> float | None:
    """Noise on each number of a sum, where the owners add it, and perhaps more than the plan's; ``None``: as planned."""
    if terms is None or (trust := terms.trust_model).mode == "central":
        return None
    return trust.carried_std(plan, trust.sites)


def _source(config: Config) -> str:
    data = config.data
    if data.source in ("shapes", "procedural"):
        return f"{data.records:,} {'generated shapes' if data.source == 'shapes' else 'procedural images'}"
    return f"{data.source} at {data.path}" if data.path else data.source
