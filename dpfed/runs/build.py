"""Makes the parts of a run from its configuration, once, so that no other module has to look anything up again."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dpfed.bounding.engines import GroupBatch, choose_engine, exact_arithmetic, require_fitting
from dpfed.bounding.engines.engine import LossOfViews
from dpfed.building.engine import engine_for
from dpfed.building.images import image_shape
from dpfed.building.model import model_of
from dpfed.building.own import OwnParts, own_parts, said_of_parts
from dpfed.building.plan import describes, plan_of, sketch_of
from dpfed.config import AdaptationConfig, Config
from dpfed.config.configuration import ResolvedConfig
from dpfed.data.items.records import Records
from dpfed.data.record_set import RecordSet
from dpfed.data.sampling import protected_count
from dpfed.data.store.records import RecordStore
from dpfed.data.views.record_views import RecordViews, Tokenizer
from dpfed.errors import UserError
from dpfed.evaluation.evaluator import Evaluator
from dpfed.evaluation.tasks import tasks_of
from dpfed.features.extraction import FeatureCache
from dpfed.features.towers import frozen_towers
from dpfed.features.towers_once import TowersOnce
from dpfed.features.training_views import TrainingViews
from dpfed.models.byol import BYOL
from dpfed.models.norm import refuse_mixing
from dpfed.models.starting import StartingWeights
from dpfed.models.summary import image_start_of
from dpfed.models.validation import check_independence, random_group, validate
from dpfed.objectives import GroupLoss
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent, import_progress, signs_of_life
from dpfed.protocol.named_code import refuse_other_code
from dpfed.runs.closed_form import add_moment_heads, said_of_layers
from dpfed.runs.dummy_batch import dummy_batch, largest_pass, one_group, views_per_image
from dpfed.runs.labels import label_of
from dpfed.runs.memory import records_of_a_pass, require_memory
from dpfed.runs.own import finished_model, open_own, own_loss, tokenizer_of
from dpfed.runs.preflight import guarded, refuse_inexact, refuse_too_many_ranks, refuse_uncaptioned
from dpfed.runs.public_basis import basis_in, public_basis, with_basis
from dpfed.runs.record_views import record_views
from dpfed.runs.records import public_records_of, records_of
from dpfed.runs.resolution import changed, pick_device, refuse_engine, resolve_with_start
from dpfed.runs.starts import starting_weights
from dpfed.runs.unused import refuse_unused
from dpfed.training.learner import Learner, SharedNoise

if TYPE_CHECKING:
    from dpfed.protocol.terms import Terms


@dataclass(frozen=True)
class Parts:
    """The parts of a run, made from its configuration. They hold the run's records, but no secret key.

    Attributes:
        config: Configuration with every choice made.
        learner: Learner, which holds the model, the records, the plan, the views, the loss and the optimizer.
        evaluator: Evaluator, which measures the model.
        loss: Loss of one group.
        start: Starting weights of the model, if the configuration names any.
        terms: Terms of the federation, if there is one; the plan is then the federation's, and the records are this party's.
        own: Descriptions of the user's own parts, by their keys in the configuration.
    """

    config: ResolvedConfig
    learner: Learner
    evaluator: Evaluator
    loss: GroupLoss
    start: StartingWeights | None = None
    terms: Terms | None = None
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> PrivacyPlan:
        """The privacy plan."""
        return self.learner.plan

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""
        return self.learner.model

    @property
    def store(self) -> RecordSet:
        """The records."""
        return self.learner.records

    @property
    def views(self) -> RecordViews:
        """The views: they make the inputs of the whole model from records."""
        return self.learner.views.whole

    def with_learner(self, **changes: Any) -> Parts:
        """Returns a copy of the parts, with the given attributes of the learner changed."""
        return dataclasses.replace(self, learner=self.learner.replace(**changes))

    def dummy_batch(self) -> GroupBatch:
        """Makes a few groups of random images and texts, whose sizes vary as in training (`dpfed.runs.dummy_batch`)."""
        return _dummy_batch(self.config, self.learner)


def build(
    config: Config,
    randomness: Randomness | None = None,
    progress: Progress | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    terms: Terms | None = None,
    stand_in_plan: PrivacyPlan | None = None,
    known: PrivacyPlan | None = None,
    start: StartingWeights | None = None,
    features: Path | None = None,
    given: OwnParts | None = None,
) -> Parts:
    """Makes the parts of a run from its configuration.

    This resolves the choices that the configuration leaves open, and checks all that can be checked before any budget is spent.

    Args:
        config: Configuration as the user wrote it, or as this or another machine resolved it; resolved choices are kept.
        randomness: Randomness for the initial weights. (On resume, a checkpoint later replaces these weights.) ``None``: the
            caller will load weights that the run has saved, so starting weights may be missing.
        progress: Progress, which shows the stages.
        rank: Number of this process among those that share the work, from 0.
        world_size: Number of processes that share the work.
        terms: Terms of the federation in which this process is a party; they hold the plan.
        stand_in_plan: Plan of the private run, if public records replace its private ones (`dpfed.planning.proxy`). The number
            of the public records is not checked. ``None``: the configuration names the run's own records.
        known: Plan that the caller has already computed for these records; ``None``: this function computes it.
        start: Starting weights that the caller has already found; ``None``: this function looks for them.
        features: Folder for features of the frozen towers, if they are not kept beside the record store; ``None``: a temporary
            folder.
        given: The user's own parts that were passed in Python. Parts that the configuration names are looked up.

    Returns:
        The parts of the run.

    Raises:
        UserError: Among others for an impossible plan, more workers than groups, starting weights that are missing or unfit,
            unreadable records, a model whose output for one record depends on other records, an impossible evaluation, a
            missing device, an engine that is incompatible with the method, or too little memory.
    """
    exact_arithmetic()
    progress = progress or Silent()
    if terms is not None:
        refuse_other_code(terms.code)
    user_parts = own_parts(config, given)
    own_views, config = open_own(config, user_parts, progress)
    config, start = resolve_with_start(config, start)
    if randomness is not None and start is None:
        starting_weights(config)  # reports missing weights, before anything that takes seconds
    device = pick_device(config.training.device)
    refuse_engine(config)
    config = _with_pass_records(config, device, progress)
    require_memory(config, device)
    tokenizer, agreed = tokenizer_of(config, user_parts), terms.privacy_plan if terms else stand_in_plan
    _refuse_cached(config)
    sketch = agreed or known or sketch_of(config)
    model = _model(config, user_parts, randomness, start, largest_pass(config, sketch), tokenizer, progress)
    if isinstance(model, BYOL) and (world_size > 1 or terms is not None):  # the other workers' targets would never move
        raise UserError(
            "BYOL trains in one process only, because the target networks of other workers would never follow the encoder: use "
            "one worker and no federation, or another model and loss. [run-byol-processes]"
        )
    store = own_views.records if own_views else _records(config, progress, stand_in=agreed is not None)
    refuse_uncaptioned(store.kind, store.name, config)
    plan = agreed or _plan(config, store, known)
    refuse_too_many_ranks(plan, world_size)
    views = dataclasses.replace(own_views, tokenizer=tokenizer) if own_views else record_views(config, tokenizer)
    loss = own_loss(config, user_parts, model, views)
    cache = FeatureCache(features, progress, config.data.keep_features)
    embedder = TowersOnce(store, views, cache).embedder
    evaluator = Evaluator(store, embedder, config.evaluation, tasks_of(store, config.evaluation, config.model))
    public = None if own_views else public_records_of(config, record_store(store), import_progress(progress, "public records"))
    noise, method = shared_noise(plan, terms), method_named(config.bounding.method)
    if method.closed_form:
        basis = basis_in(terms) if terms else public_basis(config, model, views, record_store(store), device, progress)
        config = with_basis(config, basis)
        bases = None if basis is None else basis.bases
        add_moment_heads(model, config, plan, noise.std or plan.noise_std, tokenizer, noise.parties, bases)
        progress.note(said_of_layers(model))
    learner = Learner(
        plan=plan,
        model=model.to(device),
        records=store,
        views=_training_views(config, plan, views, cache, label_of(config, loss, store)),
        engine=functools.partial(engine_for, config=config, loss=loss),
        optimizer=config.optimizer,
        own_optimizer=user_parts.optimizer,
        microbatch=config.bounding.microbatch,
        public=public,
        rank=rank,
        world_size=world_size,
        noise=noise,
        released_in_blocks=terms is None,
    )
    resolved = _with_engine(config, learner, loss, progress)
    engine = functools.partial(engine_for, config=resolved, loss=loss)
    return Parts(resolved, learner.replace(engine=engine), evaluator, loss, start, terms, said_of_parts(resolved, user_parts))


def shared_noise(plan: PrivacyPlan, terms: Terms | None) -> SharedNoise:
    """Returns how the parties of a federation share the noise.

    Args:
        plan: Plan of the federation.
        terms: Terms of the federation; ``None``: the run is not federated.
    """
    if terms is None or (trust := terms.trust_model).mode == "central":
        return SharedNoise()
    return SharedNoise(trust.honest if trust.shared else 1, trust.carried_std(plan, trust.sites))


def _model(
    config: Config,
    user_parts: OwnParts,
    randomness: Randomness | None,
    start: StartingWeights | None,
    tried: int,
    tokenizer: Tokenizer | None,
    progress: Progress,
) -> nn.Module:
    """Makes the model with its initial weights, and refuses a model whose output for one record depends on others; see `build`.

    Args:
        tried: Number of records of the largest pass in which this dependence is tested.
    """
    progress.note("building the model")
    if user_parts.model is not None and start is not None:
        raise UserError(
            "model.start gives starting weights to a model that dpfed builds, but this model was passed in Python: leave "
            "model.start out, and load the weights into the model. [own-start]"
        )
    method, engine, fresh = method_named(config.bounding.method), config.bounding.engine, randomness is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.seed("initialise", 0) if randomness else 0)
        frozen = AdaptationConfig(image="frozen", text="frozen") if method.closed_form else None
        model = finished_model(config, user_parts.model, tokenizer) if user_parts.model is not None else None
        model = model or model_of(config, fresh, start if fresh else None, frozen)
    validate(model)
    if not method.picks_engine:
        refuse_mixing(model, f"bounding.method = '{method.name}'")
    if engine not in ("auto", "loop"):
        refuse_mixing(model, f"bounding.engine = '{engine}'")
    text = (tokenizer.vocabulary, tokenizer.context) if tokenizer else None
    trying = signs_of_life(progress.note, "testing with random inputs whether a record changes others' embeddings")
    with torch.random.fork_rng(devices=[]), trying:
        check_independence(model, random_group(image_shape(config), text, records=2), tried)
    return model


def _training_views(
    config: Config, plan: PrivacyPlan, views: RecordViews, cache: FeatureCache, label: str | None
) -> TrainingViews:
    """Makes the views of records that a worker's model and loss read."""
    if plan.bounding.method.closed_form:
        return TrainingViews(views, plan.bounding.options["views"], fixed=True, cache=cache)
    return TrainingViews(views, config.cached_views, cache=cache, label=label)


def _records(config: Config, progress: Progress, stand_in: bool) -> RecordStore:
    """Opens the records; refuses too few records for the plan, unless public records stand in for the private ones."""
    progress.note(f"opening the records: {_source(config)}")
    importing = None if stand_in else guarded(import_progress(progress), config)
    return records_of(config, importing, progress.note)


def _plan(config: Config, store: RecordSet, known: PrivacyPlan | None) -> PrivacyPlan:
    """Returns the plan of these records: the known plan if it fits them, or else a newly calibrated plan."""
    records = protected_count(store, config.privacy.unit)
    if known is not None and known.sampling.records == records and describes(config, known):
        return known
    plan = plan_of(records, config)
    plan.require_finite()
    return plan


def _with_pass_records(config: Config, device: torch.device, progress: Progress) -> Config:
    """Returns the configuration with the number of records of a pass, which follows from the device's memory.

    The configuration stays as it is if it states the number, is resolved, or has a method with its own engine.
    """
    if not method_named(config.bounding.method).picks_engine or isinstance(config, ResolvedConfig):
        return config
    is_new, is_fp32 = config.bounding.engine == "auto", config.training.precision == "fp32"  # a run to resume has its engine
    if device.type == "cuda" and is_new and is_fp32 and torch.cuda.get_device_capability(device) >= (8, 0):
        progress.note(
            "this run trains in float32: training.precision = 'bf16' is usually several times as fast on such a GPU, and the "
            "guarantee is the same"
        )
    if config.bounding.pass_records is not None:
        return config
    return changed(config, bounding={"pass_records": records_of_a_pass(config, device)})


def _with_engine(config: Config, learner: Learner, loss: GroupLoss, progress: Progress) -> ResolvedConfig:
    """Returns the configuration with the engine for this model on this machine, and with no choice left open."""
    method, engine = method_named(config.bounding.method), str(config.bounding.engine)
    model, precision = learner.views.trained(learner.model), config.training.precision
    if not method.closed_form and not isinstance(config, ResolvedConfig):
        group = one_group(_dummy_batch(config, learner), config)
        refuse_unused(model, group, LossOfViews(model, precision, loss), by_embeddings=not method.picks_engine)
    if engine == "auto" and method.picks_engine and config.privacy.noise == "discrete":
        engine = "loop"
    elif engine == "auto" and method.picks_engine:
        groups, tried = learner.plan.steps * learner.plan.groups, copy.deepcopy(model)
        with signs_of_life(progress.note, "trying the layerwise engine on random images"):
            records, batch = config.bounding.pass_records, _dummy_batch(config, learner)
            engine = choose_engine(tried, batch, precision, loss, groups, progress.note, records)
    elif engine == "layerwise":  # its rules for kinds of layers must fit this model
        require_fitting(model, _dummy_batch(config, learner), precision, loss)
    config = changed(config, training={"device": learner.device.type}, bounding={"engine": engine})
    refuse_inexact(config)
    return ResolvedConfig.unchecked(**{name: getattr(config, name) for name in Config.model_fields})


def _dummy_batch(config: Config, learner: Learner) -> GroupBatch:
    towers = frozen_towers(learner.model) if learner.views.from_features else None
    labelled = learner.views.label is not None
    return dummy_batch(config, learner.plan, learner.views.whole.tokenizer, learner.device, towers, labelled)


def _refuse_cached(config: Config) -> None:
    """Refuses cached features if there are too few views, or if the frozen tower has random weights.

    Raises:
        UserError: If ``views.cached`` is impossible; the message names the keys to set.
    """
    cached, needed = config.cached_views, views_per_image(config)
    if 0 < cached < needed:
        raise UserError(
            f"a step uses {needed} views of each image, but views.cached = {cached}: set {needed} or more. [run-views-few]"
        )
    if cached and image_start_of(config.model) == "random":
        raise UserError(
            "views.cached computes the features of a frozen image tower once, but its weights are random: set model.weights or "
            "model.start. [run-views-random]"
        )


def record_store(records: RecordSet) -> RecordStore:
    """Returns the record store that holds the given records.

    Raises:
        UserError: If the records are a user's own data set.
    """
    store = records.store if isinstance(records, Records) else records
    if not isinstance(store, RecordStore):
        raise UserError(
            f"{records.name} is a data set of your own, but simulated sites, and the methods 'moments' and 'public', need a "
            "record store: import the records with `dpfed data import`, and name the store in data.path. [records-no-store]"
        )
    return store


def _source(config: Config) -> str:
    data = config.data
    if data.source in ("shapes", "procedural"):
        return f"{data.records:,} {'generated shapes' if data.source == 'shapes' else 'procedural images'}"
    return f"{data.source} at {data.path}" if data.path else data.source
