"""From a configuration to the parts of a run, once: whoever needs a part gets it from here, and looks nothing up again."""

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
from dpfed.runs.closed_form import add_moment_heads
from dpfed.runs.dummy_batch import dummy_batch, largest_pass, views_per_image
from dpfed.runs.labels import label_of
from dpfed.runs.memory import records_of_a_pass, require_memory
from dpfed.runs.own import finished_model, open_own, own_loss, tokenizer_of
from dpfed.runs.preflight import guarded, refuse_inexact, refuse_too_many_ranks, refuse_uncaptioned
from dpfed.runs.public_basis import basis_in, public_basis, with_basis
from dpfed.runs.record_views import record_views
from dpfed.runs.records import public_records_of, records_of
from dpfed.runs.resolution import changed, pick_device, refuse_engine, resolve_with_start
from dpfed.runs.starts import starting_weights
from dpfed.training.learner import Learner, SharedNoise

if TYPE_CHECKING:
    from dpfed.protocol.terms import Terms


@dataclass(frozen=True)
class Parts:
    """What a configuration comes to: the public parts of a run, without any secret key.

    Attributes:
        config: with every choice made.
        learner: the model, the records, the plan, the views, the loss and the optimizer.
        evaluator: measures the model.
        loss: of one group.
        start: the weights that the model starts from, where the configuration names some.
        terms: of the federation, if there is one; then the plan is the federation's, and the records are this party's own.
        own: the user's own parts in words, by their keys in the configuration.
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
        """What is promised."""
        return self.learner.plan

    @property
    def model(self) -> nn.Module:
        """On its device."""
        return self.learner.model

    @property
    def store(self) -> RecordSet:
        """The records."""
        return self.learner.records

    @property
    def views(self) -> RecordViews:
        """How records become what a whole model reads."""
        return self.learner.views.whole

    def with_learner(self, **changes: Any) -> Parts:
        """Parts whose learner has other attributes."""
        return dataclasses.replace(self, learner=self.learner.replace(**changes))

    def dummy_batch(self) -> GroupBatch:
        """Noise in the shape of a microbatch: as many groups, of sizes that vary as they will."""
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
    """Makes the choices that a configuration leaves open, makes the parts of the run, and checks before any budget is spent
    all that can be checked.

    Args:
        config: as the user wrote it, or resolved before, here or elsewhere; a choice that is made is kept.
        randomness: gives the initial weights, also on resume, where a checkpoint then replaces them; ``None``: the model of a
            finished run will be loaded over them, and starting weights need not be there.
        progress: sees how far it is.
        rank: which of the processes that share the work this one is.
        world_size: how many there are.
        terms: of the federation that this process is a party of: they hold the plan.
        stand_in_plan: the plan of other records, for which these public records stand in (`dpfed.planning.proxy`). Their
            number is not checked.
        known: the plan of these records, if their number was known before.
        start: the starting weights, if they were found before.
        features: folder for features of frozen towers that do not stay beside their store; ``None``: they go with the process.
        given: parts of the user's own that were handed over in Python. Those that the configuration names are found.

    Raises:
        UserError: for an impossible plan, more workers than groups, starting weights that are not there or do not fit,
            unreadable records, a model that mixes records, an impossible evaluation, a device that is not there, an engine
            that does not go with the method, too little memory.
    """
    exact_arithmetic()
    progress = progress or Silent()
    if terms is not None:
        refuse_other_code(terms.code)
    own = own_parts(config, given)
    own_views, config = open_own(config, own, progress)
    config, start = resolve_with_start(config, start)
    if randomness is not None and start is None:
        starting_weights(config)  # says which are missing, before anything that takes seconds
    device = pick_device(config.training.device)
    refuse_engine(config)
    config = _with_pass_records(config, device, progress)
    require_memory(config, device)
    tokenizer, agreed = tokenizer_of(config, own), terms.privacy_plan if terms else stand_in_plan
    _refuse_cached(config)
    sketch = agreed or known or sketch_of(config)
    model = _model(config, own, randomness, start, largest_pass(config, sketch), tokenizer, progress)
    if isinstance(model, BYOL) and (world_size > 1 or terms is not None):  # whose targets would stand still
        raise UserError(
            "BYOL trains in one process: only there its target follows the encoder. Leave the other workers out, or take "
            "another model and loss. [run-byol-processes]"
        )
    store = own_views.records if own_views else _records(config, progress, stand_in=agreed is not None)
    refuse_uncaptioned(store.kind, store.name, config)
    plan = agreed or _plan(config, store, known)
    refuse_too_many_ranks(plan, world_size)
    views = dataclasses.replace(own_views, tokenizer=tokenizer) if own_views else record_views(config, tokenizer)
    loss = own_loss(config, own, model, views)
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
    learner = Learner(
        plan=plan,
        model=model.to(device),
        records=store,
        views=_training_views(config, plan, views, cache, label_of(config, loss, store)),
        engine=functools.partial(engine_for, config=config, loss=loss),
        optimizer=config.optimizer,
        own_optimizer=own.optimizer,
        microbatch=config.bounding.microbatch,
        public=public,
        rank=rank,
        world_size=world_size,
        noise=noise,
        released_in_blocks=terms is None,
    )
    resolved = _with_engine(config, learner, loss, progress)
    engine = functools.partial(engine_for, config=resolved, loss=loss)
    return Parts(resolved, learner.replace(engine=engine), evaluator, loss, start, terms, said_of_parts(resolved, own))


def shared_noise(plan: PrivacyPlan, terms: Terms | None) -> SharedNoise:
    """How the parties of a federation add the noise, where they do.

    Args:
        plan: of the federation.
        terms: of it; ``None``: there is none.
    """
    if terms is None or (trust := terms.trust_model).mode == "central":
        return SharedNoise()
    return SharedNoise(trust.honest if trust.shared else 1, trust.carried_std(plan, trust.sites))


def _model(
    config: Config,
    own: OwnParts,
    randomness: Randomness | None,
    start: StartingWeights | None,
    tried: int,
    tokenizer: Tokenizer | None,
    progress: Progress,
) -> nn.Module:
    """The model at its initial weights, refused if a record changes what the model makes of others; see `build`.

    Args:
        tried: records of the largest pass in which that is tried.
    """
    progress.note("building the model")
    method, engine, fresh = method_named(config.bounding.method), config.bounding.engine, randomness is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.seed("initialise", 0) if randomness else 0)
        frozen = AdaptationConfig(image="frozen", text="frozen") if method.closed_form else None
        model = finished_model(config, own.model, tokenizer) if own.model is not None else None
        model = model or model_of(config, fresh, start if fresh else None, frozen)
    validate(model)
    if not method.picks_engine:
        refuse_mixing(model, f"bounding.method = '{method.name}'")
    if engine not in ("auto", "loop"):
        refuse_mixing(model, f"bounding.engine = '{engine}'")
    text = (tokenizer.vocabulary, tokenizer.context) if tokenizer else None
    trying = signs_of_life(progress.note, "trying the model on noise: does a record change others?")
    with torch.random.fork_rng(devices=[]), trying:
        check_independence(model, random_group(image_shape(config), text, records=2), tried)
    return model


def _training_views(
    config: Config, plan: PrivacyPlan, views: RecordViews, cache: FeatureCache, label: str | None
) -> TrainingViews:
    """What a worker's model, and its loss, read of its records."""
    if plan.bounding.method.closed_form:
        return TrainingViews(views, plan.bounding.options["views"], fixed=True, cache=cache)
    return TrainingViews(views, config.cached_views, cache=cache, label=label)


def _records(config: Config, progress: Progress, stand_in: bool) -> RecordStore:
    """The records. Their number must suffice for the plan, unless it is one that was made for others."""
    progress.note(f"opening the records: {_source(config)}")
    importing = None if stand_in else guarded(import_progress(progress), config)
    return records_of(config, importing, progress.note)


def _plan(config: Config, store: RecordSet, known: PrivacyPlan | None) -> PrivacyPlan:
    """The plan of these records; one that is known already is not calibrated again."""
    records = protected_count(store, config.privacy.unit)
    if known is not None and known.sampling.records == records and describes(config, known):
        return known
    plan = plan_of(records, config)
    plan.require_finite()
    return plan


def _with_pass_records(config: Config, device: torch.device, progress: Progress) -> Config:
    """The configuration with the number of records of a pass, which follows from the device's memory."""
    if not method_named(config.bounding.method).picks_engine or isinstance(config, ResolvedConfig):
        return config
    if device.type == "cuda" and config.training.precision == "fp32":
        progress.note("float32 on this GPU: training.precision = 'bf16' is several times as fast, and as sound")
    if config.bounding.pass_records is not None:
        return config
    return changed(config, bounding={"pass_records": records_of_a_pass(config, device)})


def _with_engine(config: Config, learner: Learner, loss: GroupLoss, progress: Progress) -> ResolvedConfig:
    """The configuration with the engine for this model on this machine, and nothing left to choose."""
    method, engine = method_named(config.bounding.method), str(config.bounding.engine)
    model, precision = learner.views.trained(learner.model), config.training.precision
    if engine == "auto" and method.picks_engine and config.privacy.noise == "discrete":
        engine = "loop"
    elif engine == "auto" and method.picks_engine:
        groups, tried = learner.plan.steps * learner.plan.groups, copy.deepcopy(model)
        with signs_of_life(progress.note, "trying the layerwise engine on noise"):
            records, batch = config.bounding.pass_records, _dummy_batch(config, learner)
            engine = choose_engine(tried, batch, precision, loss, groups, progress.note, records)
    elif engine == "layerwise":  # it has rules for kinds of layers, and must not misread one
        require_fitting(model, _dummy_batch(config, learner), precision, loss)
    config = changed(config, training={"device": learner.device.type}, bounding={"engine": engine})
    refuse_inexact(config)
    return ResolvedConfig.unchecked(**{name: getattr(config, name) for name in Config.model_fields})


def _dummy_batch(config: Config, learner: Learner) -> GroupBatch:
    towers = frozen_towers(learner.model) if learner.views.from_features else None
    labelled = learner.views.label is not None
    return dummy_batch(config, learner.plan, learner.views.whole.tokenizer, learner.device, towers, labelled)


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


def record_store(records: RecordSet) -> RecordStore:
    """The record store that some records are.

    Raises:
        UserError: if they are a data set of the user's own.
    """
    store = records.store if isinstance(records, Records) else records
    if not isinstance(store, RecordStore):
        raise UserError(f"{records.name} is a data set, and a record store is needed here: import it. [records-no-store]")
    return store


def _source(config: Config) -> str:
    data = config.data
    if data.source in ("shapes", "procedural"):
        return f"{data.records:,} {'generated shapes' if data.source == 'shapes' else 'procedural images'}"
    return f"{data.source} at {data.path}" if data.path else data.source
