"""The whole job, top to bottom: a configuration in, a run directory with model, card and report out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpfed.config import Config, load_config
from dpfed.config.effects import refuse_unmeasured, refuse_without_effect, without_effect
from dpfed.config.shipped import find_tower
from dpfed.data.store.remote import is_url
from dpfed.data.views.words import WordTokenizer
from dpfed.errors import UserError
from dpfed.evaluation.suite import Evaluation, tasks_of
from dpfed.models.blueprints import LOCAL_DIR
from dpfed.models.building import settled
from dpfed.models.folder import save_encoder
from dpfed.models.summary import trained_part
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent, Watcher
from dpfed.runs.directory import RunDirectory
from dpfed.runs.foresight import refuse_sharding
from dpfed.runs.outcome import write_outcome
from dpfed.runs.provenance import began, environment
from dpfed.training.checkpoint import Checkpoints, Progress
from dpfed.training.coordinator import Coordinator, StepSummary
from dpfed.training.post_processing import serving
from dpfed.training.releases import Releases
from dpfed.training.session import Parts, assemble
from dpfed.training.trainer import InProcess, Transport, train
from dpfed.training.worker import GroupObserver

if TYPE_CHECKING:
    from dpfed.data.store.records import RecordStore
    from dpfed.federation.protocol.terms import Terms

_CURVE_POINTS = 50  # epsilon over steps is computed at about so many steps


@dataclass(frozen=True)
class Job:
    """A run that is ready to go on.

    Attributes:
        run: its directory, which must be locked while it is carried out.
        parts: its public parts.
        randomness: its secret.
    """

    run: RunDirectory
    parts: Parts
    randomness: Randomness

    @property
    def observe(self) -> GroupObserver | None:
        """Receives raw, private figures of each step where the user asked for them."""
        return self.run.append_diagnostics if self.parts.config.diagnostics == "raw" else None


def pretrain(
    config: Config | str | Path, folder: str | Path, watcher: Watcher | None = None, again: bool = False
) -> RunDirectory:
    """Trains an encoder privately into a new run directory.

    Args:
        config: what to do; a path, or the name of a config that dpfed ships, is read by `load_config`.
        folder: must not be in use, but by this very run if `again`.
        watcher: sees the stages.
        again: go on if the run is there already.

    Returns:
        The finished run.

    Raises:
        UserError: before anything is written, for whatever can be known to be wrong by then.
    """
    if isinstance(config, str | Path):
        config = load_config(config)
    if not isinstance(config, Config):
        raise UserError(
            f"expected the path of a configuration, or one of dpfed.load_config or dpfed.parse_config, got "
            f"{type(config).__name__}."
        )
    watcher = watcher or Silent()
    check(config, folder, again)
    refuse_sharding(config)
    if not RunDirectory.unused(folder):
        return resume(folder, watcher)
    job = begin(config, folder, watcher)
    with job.run.locked():
        return carry_out(job, watcher)


def resume(folder: str | Path, watcher: Watcher | None = None) -> RunDirectory:
    """Goes on with a run that was interrupted; a finished run is returned as it is.

    Raises:
        UserError: if the run, its ledger or its checkpoint is damaged, or another process holds it.
    """
    watcher = watcher or Silent()
    run = RunDirectory.open(folder)
    if run.simulation.is_file():
        from dpfed.federation.simulation import resume_simulation  # what it imports, only few runs need

        return resume_simulation(run, watcher)
    refuse_sharding(run.config())
    with run.locked():
        if run.finished:
            run.forget_key()  # a crash may have come in between
            return run
        return carry_out(take_up(run, watcher), watcher)


def check(config: Config, folder: str | Path, again: bool) -> None:
    """Refuses keys that have no effect, and a directory that holds another run (unless `again`, any) or cannot be made.

    Raises:
        UserError: naming the keys, or saying what is there.
    """
    refuse_without_effect(config)
    if again and not RunDirectory.unused(folder):
        RunDirectory.open(folder).refuse_another(settled(with_absolute_paths(config)))
    else:
        RunDirectory.refuse_unusable(folder)


def begin(
    config: Config,
    folder: str | Path,
    watcher: Watcher,
    owners: int = 1,
    randomness: Randomness | None = None,
    terms: Terms | None = None,
    files: dict[str, str] | None = None,
) -> Job:
    """A new run in a directory that must not be in use, for the first of `owners` processes.

    Args:
        config: what to do.
        folder: must not be in use.
        watcher: sees the stages.
        owners: processes that share the work.
        randomness: the run's secret; default: `secret_of` the configuration.
        terms: of the federation that the run is for.
        files: further files of the run, by name.

    Raises:
        UserError: see `pretrain`.
    """
    RunDirectory.refuse_unusable(folder)
    randomness = randomness or secret_of(config)
    parts = assemble(with_absolute_paths(config), randomness, watcher, owners=owners, terms=terms)
    refuse_unmeasured(parts.config, tasks_of(parts.store, parts.config))
    _say_what_is_trained(parts, watcher)
    files = {RunDirectory.PROVENANCE: began(parts.store, parts.config.data), **(files or {})}
    if terms:
        files[RunDirectory.TERMS] = terms.text
    return Job(RunDirectory.create(folder, parts.config, randomness, files), parts, randomness)


def secret_of(config: Config) -> Randomness:
    """New secret randomness, or what a fixed seed gives."""
    seed = config.privacy.seed
    return Randomness.fresh() if seed is None else Randomness.from_seed(seed)


def take_up(run: RunDirectory, watcher: Watcher, owners: int = 1, terms: Terms | None = None) -> Job:
    """An unfinished run, for the first of `owners` processes; they may be more or fewer than before.

    Args:
        run: locked by the caller.
        watcher: sees the stages.
        owners: processes that share the work.
        terms: of the federation that the run is for.

    Raises:
        UserError: see `resume`; for a federation's run, if no terms are given.
    """
    if terms is None and run.terms.is_file():
        raise UserError(f"{run.path} is the run of a federation: start its server again (`flwr run`) to go on with it.")
    randomness = run.randomness()
    run.note_environment(environment())
    return Job(run, assemble(run.config(), randomness, watcher, owners=owners, terms=terms), randomness)


def alone(job: Job) -> Transport:
    """This process has all records and does all the work."""
    return InProcess([job.parts.worker(job.randomness.for_owners(), job.observe)])


def carry_out(
    job: Job,
    watcher: Watcher,
    connect: Callable[[Job], Transport] = alone,
    observers: Iterable[Callable[[StepSummary], None]] = (),
) -> RunDirectory:
    """Takes the steps that are left, evaluates, and writes model, card and report.

    Args:
        job: what to carry out; its directory is locked by the caller.
        watcher: sees the stages.
        connect: reaches the workers, of which this process has one; called when all is loaded.
        observers: called after each step with its public summary.
    """
    run, parts, randomness = job.run, job.parts, job.randomness
    config, plan = parts.config, parts.plan
    checkpoints = Checkpoints(run.checkpoints, config.training.keep)
    ledger, start, coordinator = _pick_up(run, parts, randomness, checkpoints)
    measured = config.evaluation.split != "none"
    if start == 0 and measured:
        watcher.note("measuring the model before training")
    untrained = parts.evaluate("untrained", 0) if start == 0 else None
    if untrained is not None:
        _record(run, untrained, watcher)
    advance = watcher.stage("private steps" if plan.private else "steps", plan.steps)
    advance(start)

    def keep_metrics(summary: StepSummary) -> None:
        if _due(summary, plan, max(1, plan.steps // _CURVE_POINTS)):
            run.append(
                run.metrics, {"step": summary.done, "epsilon": ledger.epsilon if plan.promises else None, **summary.figures()}
            )

    def keep_checkpoint(summary: StepSummary) -> None:
        if _due(summary, plan, config.training.checkpoint_every):
            checkpoints.save(Progress(summary.done, ledger.charged, plan.fingerprint), parts.model, coordinator)
            # A process can compute a step again if an older checkpoint must be taken; institutions do not answer twice.
            Releases(run.releases).forget(before=checkpoints.oldest() if parts.terms else summary.done)

    def evaluate_on_the_way(summary: StepSummary) -> None:
        if config.evaluation.every and summary.done < plan.steps and _due(summary, plan, config.evaluation.every):
            with serving(parts.model, coordinator.post_processors):
                _record(run, parts.evaluate("trained", summary.done), watcher)

    def show_progress(summary: StepSummary) -> None:
        advance(summary.done)

    own = [keep_metrics, evaluate_on_the_way, keep_checkpoint, show_progress]
    train(connect(job), coordinator, range(start, plan.steps), [*own, *observers])
    with serving(parts.model, coordinator.post_processors):
        watcher.note(f"{'measuring the trained model, and ' if measured else ''}writing model, card and report")
        trained = parts.evaluate("trained", plan.steps)
        # What came of each query is kept in memory only, so after an interruption the untrained model is measured again.
        untrained = _untrained_again(parts, checkpoints) if untrained is None else untrained
        _record(run, [figure.compared(untrained) for figure in trained], watcher)
        save_encoder(run.model, parts.model, config)
        write_outcome(run, parts, ledger)
    run.forget_key()
    return run


def _untrained_again(parts: Parts, checkpoints: Checkpoints) -> list[Evaluation]:
    """The figures before training, of a run that goes on; none where its first checkpoint is gone."""
    first = next((path for path in checkpoints.paths() if path.stem == "step-00000000"), None)
    if first is None or parts.config.evaluation.split == "none":
        return []
    before = dataclasses.replace(parts, model=copy.deepcopy(parts.model))
    before.load_weights(first)
    return before.evaluate("untrained", 0)


def _say_what_is_trained(parts: Parts, watcher: Watcher) -> None:
    trained = trained_part(parts.model, parts.config)
    watcher.note(f"trains {trained}; {trained.bytes_per_aggregate:,} bytes per aggregate")
    split = parts.config.evaluation.split
    if parts.store.public and split != "none" and parts.store.share_units("train", split):
        watcher.note(f"a {parts.store.unit_name} may stand in both the train and the {split} split here: figures flatter then")
    if parts.config.model.kind == "open_clip" and parts.config.data.size is not None:
        _say_what_stock_sees(parts.store, parts.config.data.size, watcher)
    if parts.tokenizer is None:
        return
    read = (
        f"{parts.tokenizer.context} {'words' if isinstance(parts.tokenizer, WordTokenizer) else 'tokens'} of a caption are read"
    )
    if not len(parts.store.split("train")):  # a coordinator's, which holds none of the records
        watcher.note(read)
        return
    if not parts.store.public:  # how many are longer is a fact about private records: for whoever asks
        watcher.note(f"{read}; `dpfed data inspect {parts.store.path} --config CONFIG` counts longer ones")
        return
    captions = [text for texts in parts.store.captions(parts.store.split("train")) for text in texts]
    watcher.note(f"{read}; {parts.tokenizer.truncated(captions):,} of {len(captions):,} are longer and are cut")


def _say_what_stock_sees(store: RecordStore, size: int, watcher: Watcher) -> None:
    """Which images stock open_clip, given the files, would show to the model otherwise than this run does."""
    if store.size not in (None, size):
        watcher.note(
            f"images are scaled from the store's squares of {store.size} pixels to {size}; stock open_clip scales once"
        )
    if not store.public:  # whether there are any is a fact about private records: for whoever asks
        watcher.note(
            f"`dpfed data inspect {store.path}` counts images that were converted because stock open_clip misreads them"
        )
    for what, count in store.converted.items() if store.public else ():
        watcher.note(f"{count:,} images: {what}; stock open_clip misreads their files")


def _due(summary: StepSummary, plan: PrivacyPlan, every: int) -> bool:
    return summary.done % every == 0 or summary.done == plan.steps


def _pick_up(
    run: RunDirectory, parts: Parts, randomness: Randomness, checkpoints: Checkpoints
) -> tuple[Ledger, int, Coordinator]:
    """Ledger, first step and coordinator: from the last checkpoint if there is one."""
    saved = checkpoints.paths()
    marks = {"fixed_seed": parts.config.privacy.seed is not None, "raw_diagnostics": parts.config.diagnostics == "raw"}
    if _has_header(run.ledger):
        ledger = Ledger.open(run.ledger)
    elif saved:
        raise UserError(
            f"{run.ledger} is missing or damaged, and {saved[-1].name} exists: what was spent is unknown. Restore it."
        )
    else:
        run.ledger.unlink(missing_ok=True)  # a header that a crash cut short: nothing was spent yet
        ledger = Ledger.create(run.ledger, parts.plan, marks)
    if ledger.plan.fingerprint != parts.plan.fingerprint:
        raise UserError(
            f"the plan of {run.ledger} is not the plan of the run's config.toml and records (N was {ledger.plan.records:,}, "
            f"is {parts.plan.records:,}): restore both, or start a new run."
        )
    if ledger.marks != marks:
        raise UserError(f"{run.ledger} was started with {ledger.marks}, and config.toml now says {marks}: change it back.")
    ledger.note_owners(parts.owners)
    coordinator = parts.coordinator(randomness, ledger, Releases(run.releases))
    if not saved:
        checkpoints.save(Progress(0, 0, parts.plan.fingerprint), parts.model, coordinator)
        return ledger, 0, coordinator
    progress = checkpoints.load(saved[-1], parts.model, coordinator)
    if progress.fingerprint != parts.plan.fingerprint or progress.charged > ledger.charged:
        raise UserError(
            f"{saved[-1]} and {run.ledger} do not belong together: the checkpoint saw {progress.charged} releases, the ledger "
            f"holds {ledger.charged}. Restore the ledger."
        )
    run.rewind_metrics(progress.step)
    return ledger, progress.step, coordinator


def _has_header(ledger: Path) -> bool:
    """Whether there is a ledger, of which a crash has not cut even the first line short."""
    try:
        return b"\n" in ledger.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot read the ledger {ledger}: {error.strerror or error}. Restore it.") from error


def _record(run: RunDirectory, figures: list[Evaluation], watcher: Watcher) -> None:
    known = {(line["step"], line["evaluation"]["name"]) for line in run.metric_lines() if "evaluation" in line}
    for figure in figures:
        if (figure.step, figure.name) in known:
            continue  # measured before an interruption
        run.append(run.metrics, {"step": figure.step, "evaluation": figure.facts()})
    watcher.evaluated(figures)


def with_absolute_paths(config: Config) -> Config:
    """The same configuration, meaning the same files wherever it is read. What dpfed ships keeps its name."""
    data = config.data
    path = data.path if data.path is None or is_url(data.path) else str(Path(data.path).expanduser().resolve())
    data = data.model_copy(update={"path": path})
    if "data.stores" not in without_effect(config):
        data = data.model_copy(update={"stores": str(Path(data.stores).expanduser().resolve())})
    model = config.model
    if model.weights is not None and Path(model.weights).expanduser().is_file():
        model = model.model_copy(update={"weights": str(Path(model.weights).expanduser().resolve())})
    if model.anchors is not None:
        model = model.model_copy(update={"anchors": str(Path(model.anchors).expanduser().resolve())})
    name = model.architecture or ""
    if name.startswith(LOCAL_DIR) or (name.endswith(".json") and find_tower(name) is None):
        prefix = LOCAL_DIR if name.startswith(LOCAL_DIR) else ""
        place = Path(name.removeprefix(LOCAL_DIR)).expanduser().resolve()
        model = model.model_copy(update={"architecture": f"{prefix}{place}"})
    return config.model_copy(update={"data": data, "model": model})
