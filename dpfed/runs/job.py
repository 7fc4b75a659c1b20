"""A run that is ready to continue: begun in a new directory, or taken up from one that is there.

What a user should know before the first step: what is trained, and what of the records the model does not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import began, environment
from dpfed.config import Config
from dpfed.config.effects import refuse_unmeasured
from dpfed.data.views.words import WordTokenizer
from dpfed.errors import UserError
from dpfed.evaluation.tasks import tasks_of
from dpfed.models.images import image_size
from dpfed.models.summary import trained_part
from dpfed.privacy.method import method_named
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Watcher
from dpfed.runs.assembly import Components, assemble
from dpfed.runs.budgeting import preflight_budget
from dpfed.runs.preflight import Preflight
from dpfed.runs.resolution import resolve, settle
from dpfed.runs.starts import origin_of, starting_weights
from dpfed.training.trainer import InProcess, Transport
from dpfed.training.worker import GroupObserver

if TYPE_CHECKING:
    from dpfed.data.store.records import RecordStore
    from dpfed.protocol.terms import Terms

_LOOKED_AT = 50_000  # public records whose captions are counted


def say_what_is_trained(parts: Components, watcher: Watcher) -> None:
    """Tells the user, before the first step, what will be trained and what of the records is not read as it is."""
    trained = trained_part(parts.model, parts.config)
    watcher.note(f"trains {trained}; {trained.bytes_per_aggregate:,} bytes per aggregate")
    split = parts.config.evaluation.split
    if parts.store.public and split != "none" and parts.store.share_units("train", split):
        watcher.note(f"a {parts.store.unit_name} may be in both the train and the {split} split: figures then look better")
    say_sizes(parts, watcher.note)
    if parts.config.model.kind == "open_clip":
        _say_what_stock_sees(parts.store, watcher)
    _say_few_contrasted(parts, watcher)
    if parts.tokenizer is None:
        return
    read = (
        f"{parts.tokenizer.context} {'words' if isinstance(parts.tokenizer, WordTokenizer) else 'tokens'} of a caption are read"
    )
    if not parts.store.count("train"):  # a coordinator's, which holds none of the records
        watcher.note(read)
        return
    if not parts.store.public:  # how many are longer is a fact about private records: for whoever asks
        watcher.note(f"{read}; `dpfed data inspect {parts.store.path} --config CONFIG` counts longer ones")
        return
    looked_at = parts.store.smallest(parts.store.within("train"), _LOOKED_AT)
    captions = [text for texts in parts.store.captions(looked_at) for text in texts]
    of = "" if len(looked_at) == parts.store.count("train") else f" (those of {len(looked_at):,} records)"
    watcher.note(f"{read}; {parts.tokenizer.truncated(captions):,} of {len(captions):,}{of} are longer and are cut")


def say_sizes(parts: Components, tell: Callable[[str], None]) -> None:
    """Tells what images lose on their way to the model: nothing where the store has them in the size that is read."""
    size = image_size(parts.config)
    for whose, store in (("images", parts.store), ("public images", parts.public)):
        if store is None:
            continue
        if store.size is None:
            tell(f"{whose} become squares of {size} pixels (data.size) when they are read")
        elif store.size == size:
            if store.resized and store is parts.store and parts.config.data.source != "store":
                tell(f"{whose} became squares of {size} pixels (data.size) when they were imported")
        else:
            once = "; stock open_clip scales once" if parts.config.model.kind == "open_clip" else ""
            tell(f"{whose} are scaled from the store's squares of {store.size} pixels to {size} (data.size){once}")


def _say_few_contrasted(parts: Components, watcher: Watcher) -> None:
    """That a loss which estimates something from the records of a group has few of them."""
    config, least = parts.config, parts.config.objective.loss.enough
    method = method_named(config.bounding.method)
    if (contrasted := method.contrasted(config)) < least:
        key = "public.records" if method.public_records else "privacy.batch" if method.whole_batch else "bounding.group_size"
        watcher.note(
            f"'{config.objective.name}' learns from the spread of a group's records, and {contrasted} are too few for that: "
            f"groups of {least} or more serve better ({key})"
        )


def _say_what_stock_sees(store: RecordStore, watcher: Watcher) -> None:
    """Which images stock open_clip, given the files, would show to the model otherwise than this run does."""
    if not store.public:  # whether there are any is a fact about private records: for whoever asks
        watcher.note(
            f"`dpfed data inspect {store.path}` counts images that were converted because stock open_clip misreads them"
        )
    for what, count in store.converted.items() if store.public else ():
        watcher.note(f"{count:,} images: {what}; stock open_clip misreads their files")


@dataclass(frozen=True)
class Job:
    """A run that is ready to continue.

    Attributes:
        run: its directory, which must be locked while it is carried out.
        parts: its public parts.
        randomness: its secret.
    """

    run: RunDirectory
    parts: Components
    randomness: Randomness

    @property
    def observe(self) -> GroupObserver | None:
        """Receives raw, private figures of each step where the user asked for them."""
        return self.run.append_diagnostics if self.parts.config.diagnostics == "raw" else None


def begin(
    preflight: Preflight,
    watcher: Watcher,
    randomness: Randomness | None = None,
    terms: Terms | None = None,
    files: dict[str, str] | None = None,
) -> Job:
    """A new run in a directory that must not be in use, for the first of its owners.

    Args:
        preflight: of the run.
        watcher: sees the stages.
        randomness: the run's secret; default: `secret_of` the configuration.
        terms: of the federation that the run is for.
        files: further files of the run, by name.

    Raises:
        UserError: see `pretrain`.
    """
    randomness = randomness or secret_of(preflight.config)
    config = settle(preflight.config)
    starting_weights(config)  # before anything that takes seconds
    owners = preflight.owners if terms is None else 1  # a federation's terms say who shares the groups
    parts = assemble(resolve(config, watcher), randomness, watcher, owners=owners, terms=terms)
    refuse_unmeasured(parts.config, tasks_of(parts.store, parts.config))
    if terms is None or RunDirectory.SIMULATION in (files or {}):  # otherwise the records are the sites'
        preflight_budget(preflight.folder, parts.config, parts.store, parts.plan)
    say_what_is_trained(parts, watcher)
    files = {
        RunDirectory.PROVENANCE: began(parts.store, parts.config.data, parts.public, origin_of(parts.config)),
        **(files or {}),
    }
    if terms:
        files[RunDirectory.TERMS] = terms.text
    return Job(RunDirectory.create(preflight.folder, parts.config, randomness, files), parts, randomness)


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
        raise UserError(f"{run.path} is the run of a federation: start its server again (`flwr run`) to resume it.")
    randomness = run.randomness()
    run.note_environment(environment())
    return Job(run, assemble(resolve(run.config()), randomness, watcher, owners=owners, terms=terms), randomness)


def alone(job: Job) -> Transport:
    """This process has all records and does all the work."""
    return InProcess([job.parts.worker(job.randomness.for_owners(), job.observe)])
