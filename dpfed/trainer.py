"""The library's main interface: `Trainer` runs private pretraining with the user's own model, records, views and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.budgets.given import Budget, numbers_of
from dpfed.building.own import OwnParts
from dpfed.callbacks import Callback, StepSummary
from dpfed.callbacks.callback import listed
from dpfed.config import Config, OptimizerConfig
from dpfed.config.reading import parse_config
from dpfed.console.library import shown
from dpfed.data.items.item import described
from dpfed.data.items.records import Records
from dpfed.data.items.views import Views
from dpfed.errors import UserError, short_traceback
from dpfed.losses import Loss, Prediction
from dpfed.models.byol import BYOL
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel
from dpfed.models.own import as_model
from dpfed.models.trained import mark_trained
from dpfed.own_encoder import OwnEncoder
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Progress
from dpfed.runs.budgeting import count_finished
from dpfed.runs.job import Job, create_job, in_process, resume_job
from dpfed.runs.own import refuse_methods
from dpfed.runs.preflight import Preflight
from dpfed.runs.resolution import changed
from dpfed.runs.running import Session, run_job
from dpfed.runs.same_parts import refuse_other_parts, settings_of
from dpfed.schema.named import called
from dpfed.training.optimizers import MakeOptimizer, MakeSchedule, OwnOptimizer


@dataclass(frozen=True)
class Privacy:
    """The privacy guarantee, and the mechanism that provides it. Give either `epsilon` or `noise_multiplier`.

    Attributes:
        epsilon: Epsilon of the whole run, to which the noise is calibrated.
        noise_multiplier: Sigma, the standard deviation of the noise divided by the sensitivity; epsilon follows from it.
        batch: B, expected number of records (or units) in a step; each of the N training records (or units) is sampled with
            probability q = B/N.
        steps: T, number of steps.
        group_size: S, expected number of records in a group; the loss contrasts the records of a group with each other.
        clip_norm: C, largest L2 norm of a group's gradient after clipping. With ``clipping="adaptive"``, it is the first
            threshold. Leave it out with ``clipping="automatic"``.
        clipping: Kind of clipping: ``"fixed"`` to `clip_norm`, ``"automatic"`` (normalised, to a norm of nearly 1), or
            ``"adaptive"`` (only with ``Trainer(..., settings={"diagnostics": "private"})``).
        delta: Delta of the guarantee; default: 1/(N ln N).
        unit: What the guarantee protects: ``"record"``, each record; or ``"user"``, all records of a unit together
            (`Records(unit=...)`).
        per_unit: With ``unit="user"``: largest number of a unit's records that take part in a step.
        method: Name of the bounding method, see docs/methods.md.
        options: Options of the method.
        accountant: Privacy accountant: ``"pld"``, which is tighter, or ``"rdp"``, which the papers of the methods use.
        noise: Kind of the noise: ``"gaussian"``, or ``"discrete"``, whose proof also covers the rounding of numbers.
        seed: Seed, for tests only. With a seed the noise is not secret, so no guarantee holds, and the run's privacy card says
            so.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    batch: int = 1024
    steps: int = 100
    group_size: int = 16
    clip_norm: float = 1.0
    clipping: Literal["fixed", "automatic", "adaptive"] = "fixed"
    delta: float | None = None
    unit: Literal["record", "user"] = "record"
    per_unit: int = 1
    method: str = "group"
    options: Mapping[str, Any] = field(default_factory=dict)
    accountant: Literal["pld", "rdp"] = "pld"
    noise: Literal["gaussian", "discrete"] = "gaussian"
    seed: int | None = None

    def sections(self) -> dict[str, dict[str, Any]]:
        """Returns these settings as sections of a configuration, without settings that have their default value."""
        bounding = ("group_size", "clip_norm", "clipping", "method", "options")
        sections: dict[str, dict[str, Any]] = {"privacy": {}, "bounding": {}}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value != getattr(Privacy(), name):
                sections["bounding" if name in bounding else "privacy"][name] = (
                    dict(value) if isinstance(value, Mapping) else value
                )
        return sections


class Run(RunDirectory):
    """A finished run: its folder, and the encoder that it trained.

    `card`, `results` and the other files are paths: ``print(run.card.read_text())`` shows the privacy card.
    """

    def __init__(self, path: str | Path, encoder: OwnEncoder) -> None:
        super().__init__(path)
        self._encoder = encoder

    def encoder(self) -> OwnEncoder:
        """Returns the trained encoder, in evaluation mode."""
        return self._encoder


class Over:
    """Stands for the remaining steps of a finished run: an empty iterable."""

    def __iter__(self) -> Iterator[StepSummary]:
        return iter(())


class Trainer:
    """A trainer that pretrains a model of your own on records of your own under differential privacy.

    Args:
        model: Encoder (any module from images to features), a `SimCLR` or a `TwoTower` around encoders, or another model that
            implements the contract of `dpfed.models.contract`. It is trained in place.
        records: Data set with ``len()`` and ``[]``, `Records` of a data set, or a `RecordStore`.
        privacy: Privacy guarantee and mechanism.
        views: Transform, or `Views`. Default: random crops, flips and colours of square images of `size` pixels.
        loss: Loss of `dpfed.losses`, or a function of one group's embeddings: ``loss(image)``, or ``loss(image, text)`` for
            models that read text. ``image`` has shape ``(S, V, D)``: S records, V views of each, D dimensions; ``text`` has
            shape ``(S, W, D)``, with W texts of each record. If the function has a parameter ``label``, it receives an
            ``(S,)`` int64 tensor, in which records of the same class have equal numbers. The function returns a scalar, the
            mean over the group's records. Default: InfoNCE.
        optimizer: Function from the parameters to a torch optimizer with its own learning rates, or keys of the section
            ``[optimizer]`` as a mapping. Default: Adam with a learning rate of 1e-3.
        schedule: Function from the optimizer to a torch scheduler, which is stepped after each step of the optimizer; only
            with a function as `optimizer`.
        callbacks: Callbacks, or one callback, called while the model trains.
        size: Side of the images of the default views, pixels. Default: 32.
        device: Device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        precision: Precision of the forward pass: ``"fp32"`` or ``"bf16"``.
        progress: Display of the stages. ``None``: progress bars in terminals and notebooks, and nothing elsewhere; ``True``:
            progress bars in terminals and notebooks, and a line now and then elsewhere; ``False``: nothing.
        name: Name of the run on its card.
        settings: Further keys of the configuration: by section, such as ``{"training": {"checkpoint_every": 10}}``, or, for a
            key that belongs to no section, directly, such as ``{"diagnostics": "private"}``.
        budget: Lifetime budget of the records for all runs together, epsilon or (epsilon, delta) (docs/budget.md).

    Attributes:
        config: Configuration that these arguments give.
        model: Model, with heads around it if an encoder was given.

    Raises:
        UserError: If an argument cannot be used, or settings contradict each other. Errors that
            only show when the records are read or the model runs are raised by `fit` and `open`, before the first step.
    """

    def __init__(
        self,
        model: nn.Module,
        records: Any,
        *,
        privacy: Privacy,
        views: Views | Callable[[Any], Any] | None = None,
        loss: Loss | Callable[..., Tensor] | None = None,
        optimizer: MakeOptimizer | Mapping[str, Any] | None = None,
        schedule: MakeSchedule | None = None,
        callbacks: Iterable[Callback] = (),
        size: int | None = None,
        device: str = "auto",
        precision: str = "fp32",
        progress: Progress | bool | None = None,
        name: str = "run",
        settings: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> None:
        if not isinstance(privacy, Privacy):
            raise UserError(
                f"expected dpfed.Privacy(epsilon=..., batch=..., steps=...), got {described(privacy)}. [own-privacy]"
            )
        self.model = as_model(model)
        self._records = records if isinstance(records, Records) else Records(records)
        _refuse_loss(self.model, loss)
        self._views = views if isinstance(views, Views) or views is None else Views(views)
        self._callbacks, self._progress, self._budget = listed(callbacks), progress, budget
        if budget is not None:
            numbers_of(budget)
        own_loss = None if loss is None or (isinstance(loss, Loss) and loss.objective) else loss
        if isinstance(loss, Loss) and loss.objective:
            _prepare(self.model, loss, privacy.group_size)
        if size is not None and views is not None:
            raise UserError("size= applies to the default views only: leave it out if you give views=. [own-size]")
        make, tree = _optimizer(optimizer, schedule)
        self._schedules = schedule is not None
        self._own = OwnParts(self._records, self.model, self._views, own_loss, make)
        sections = privacy.sections()
        objective = (
            {"name": called(own_loss)} if own_loss is not None else dict(loss.objective) if isinstance(loss, Loss) else {}
        )
        sections |= {
            "data": {"source": called(self._records.source), **({} if size is None else {"size": size})},
            "model": {"kind": "image-text" if reads_text(self.model) else "image", "image": called(_encoder_of(self.model))},
            "objective": objective,
            "optimizer": tree,
            "training": {"device": device, "precision": precision},
            "evaluation": {"split": _held_out(self._records)},
        }
        if self._views is not None:
            sections["views"] = {"transform": called(self._views.transform)}
            sections["views"] |= {} if self._views.count is None else {"count": self._views.count}
            sections["views"] |= {} if self._views.plain is None else {"plain": called(self._views.plain)}
        keys_alone: dict[str, Any] = {}
        if not isinstance(settings, Mapping | None):
            raise UserError(
                'expected a mapping of sections as settings, such as {"training": {"checkpoint_every": 10}}, got '
                f"{described(settings)}. [own-settings]"
            )
        for section, keys in (settings or {}).items():
            if not isinstance(keys, Mapping):
                keys_alone[section] = keys
                continue
            given = {} if section == "evaluation" else sections.get(section, {})
            if twice := [key for key in keys if key in given]:
                raise UserError(
                    f"settings has {section}.{twice[0]}, which an argument of Trainer or Privacy gives, too: leave it out of "
                    "settings, and give that argument. [own-setting-twice]"
                )
            sections[section] = {**sections.get(section, {}), **keys}
        if twice := [key for key in keys_alone if key == "name" or sections.get(key)]:
            further = "" if twice[0] == "name" else ", or give a mapping of further keys of that section"
            raise UserError(
                f"settings has {twice[0]} = {keys_alone[twice[0]]!r}, and an argument of Trainer or Privacy gives {twice[0]}: "
                f"leave it out of settings{further}. [own-setting-whole]"
            )
        given = {key: keys for key, keys in sections.items() if keys}
        self.config: Config = parse_config({"name": name, **given, **keys_alone}, "Trainer")
        refuse_methods(self.config)
        if (split := self.config.evaluation.split) not in ("none", *self._records.held_out):
            way = f"give Records({split}=...)" if self._records.store is None else f"give a record store with {split} records"
            raise UserError(
                f"evaluation.split = {split!r}, but the records have no such split: {way}, or another split. [own-split]"
            )

    @short_traceback
    def fit(self, folder: str | Path) -> Run:
        """Trains, evaluates, and writes model, card and report into the run's folder.

        If the folder holds an interrupted run, the same call resumes it; a finished run is only returned. In all cases the
        model ends with the run's weights.

        Args:
            folder: Folder of the run; no other run may use it.

        Returns:
            The finished run.

        Raises:
            UserError: If the settings, an argument of `Trainer` or the folder cannot be used; if another process works on the
                run; or if too little of a lifetime budget is left for the run. Every error that can be found in advance is
                raised before any epsilon is spent.
        """
        run = RunDirectory(folder)
        if not RunDirectory.unused(folder) and RunDirectory.open(folder).finished:
            self._found(run)
            self._note_trained(run)  # the model gets the run's weights
            return self._finished(RunDirectory.open(folder))
        with shown(self._progress) as progress:
            job = self._job(folder, progress)
            self._note_trained(job.run)
            with job.run.locked():
                return self._finished(run_job(job, progress, callbacks=self._callbacks))

    @contextmanager
    def open(self, folder: str | Path, manual: bool = False) -> Iterator[Session | Over]:
        """Opens a run for a training loop of your own: a step is on disk and charged before the loop's body sees it.

        After the last step, the run is evaluated, and model, card and report are written. If the block is left earlier,
        running the same lines again resumes the run. For a finished run there are no steps, and the model's weights stay as
        they are; call `fit` to load the run's weights.

        Args:
            folder: Folder of the run; no other run may use it.
            manual: Whether the loop's body steps the optimizer. A step then leaves the noisy mean gradient in ``.grad`` of the
                parameters, and `Session.optimizer` is the run's optimizer. Checkpoints keep its state.

        Yields:
            The remaining steps: iterate over them.

        Raises:
            UserError: For the reasons given at `fit`; also if `manual` is combined with a schedule, a warm-up or an average of
                the weights.
        """
        rates = self.config.optimizer
        if manual and (rates.ema or rates.warmup or rates.schedule != "constant" or self._schedules):
            raise UserError(
                "manual=True: the loop's body steps the optimizer, so dpfed applies no warm-up, schedule or average of the "
                "weights. Remove them from the Trainer (schedule=, and optimizer.warmup, .schedule and .ema). [own-manual]"
            )
        if not RunDirectory.unused(folder) and RunDirectory.open(folder).finished:
            self._found(RunDirectory.open(folder))
            yield Over()
            return
        with shown(self._progress) as progress:
            job = self._job(folder, progress)
            self._note_trained(job.run)
            job = replace(job, parts=job.parts.with_learner(manual=manual))
            with job.run.locked(), Session(job, progress, in_process, self._callbacks) as session:
                yield session

    def _job(self, folder: str | Path, progress: Progress) -> Job:
        if RunDirectory.unused(folder):
            preflight = Preflight.of(self.config, folder, progress=progress)
            return create_job(preflight, progress, given=self._own, budget=self._budget)
        run = RunDirectory.open(folder)
        self._refuse_another(run)
        return resume_job(run, progress, given=self._own, budget=self._budget)

    def _found(self, run: RunDirectory) -> None:
        """Refuses a finished run that has other parts or settings, and counts the run in a budget that was given later."""
        self._refuse_another(run)
        if self._budget is not None:
            count_finished(run, self._records, self._budget)

    def _note_trained(self, run: RunDirectory) -> None:
        """Marks every layer as trained on private records; does nothing if the records are public."""
        if not self._records.public:
            mark_trained(self.model, run.path)

    def _refuse_another(self, run: RunDirectory) -> None:
        """Refuses a folder that holds a run with other parts or settings."""
        kept, mine = run.config(), self.config
        refuse_other_parts(run.provenance.get("settings", {}), settings_of(self._own), run.path)
        records = Ledger.open(run.ledger).plan.sampling.records
        if mine.privacy.unit == "record" and self._records.count("train") != records:
            raise UserError(
                f"{run.path} holds a run of {records:,} training records, not of {self._records.count('train'):,}: choose "
                "another folder. [own-other-records]"
            )
        views: dict[str, object] = {"shape": kept.views.shape, "count": mine.views.count or kept.views.count}
        if mine.views.transform is None:
            views |= {"transform": kept.views.transform, "options": kept.views.options}
        size = kept.data.size if self._views is not None else mine.data.size or kept.data.size
        data: dict[str, object] = {"size": size, "resize": kept.data.resize}
        bias: dict[str, object] = {"bias": kept.objective.bias} if mine.objective.bias is None else {}
        passes: dict[str, object] = {"pass_records": kept.bounding.pass_records} if mine.bounding.pass_records is None else {}
        run.refuse_another(changed(mine, views=views, data=data, objective=bias, bounding=passes))

    def _finished(self, run: RunDirectory) -> Run:
        encoder = OwnEncoder.of(self.model, run, self._records, self._views, run.config())
        return Run(run.path, encoder)


def reads_text(model: nn.Module) -> bool:
    """Returns whether a model has a text tower."""
    return callable(getattr(model, "embed_text", None))


def _encoder_of(model: nn.Module) -> nn.Module:
    encoder = getattr(model, "encoder", None) or getattr(model, "image_encoder", None)
    return encoder if isinstance(encoder, nn.Module) else model


def _refuse_loss(model: nn.Module, loss: Any) -> None:
    """Refuses a class given as the loss; also a loss of embeddings for a model that returns projections and predictions."""
    if isinstance(loss, type):
        raise UserError(f"expected a loss, got the class {loss.__name__}: write {loss.__name__}(). [own-loss-class]")
    shipped = isinstance(loss, Loss) and not isinstance(loss, Prediction)
    if isinstance(model, BYOL) and (loss is None or shipped):
        raise UserError(
            "a BYOL returns projections and predictions, which other losses would take for embeddings: give "
            "loss=dpfed.losses.Prediction(). [own-byol-loss]"
        )


def _held_out(records: Records) -> str:
    return next((split for split in ("validation", "test") if split in records.held_out), "none")


def _optimizer(
    given: MakeOptimizer | Mapping[str, Any] | None, schedule: MakeSchedule | None
) -> tuple[OwnOptimizer | None, dict[str, Any]]:
    """Returns the user's own optimizer, or ``None``, and the keys of the configuration's section ``[optimizer]``."""
    if given is None or isinstance(given, Mapping | OptimizerConfig):
        if schedule is not None:
            raise UserError(
                "a schedule of your own needs an optimizer of your own: give optimizer=, a function. [own-schedule]"
            )
        return None, given.model_dump(exclude_defaults=True) if isinstance(given, OptimizerConfig) else dict(given or {})
    if isinstance(given, torch.optim.Optimizer) or not callable(given):
        raise UserError(
            f"expected a function that makes an optimizer from the parameters that it gets, such as lambda parameters: "
            f"torch.optim.AdamW(parameters, 1e-3), got {described(given)}. [own-optimizer]"
        )
    if schedule is not None and not callable(schedule):
        raise UserError(f"expected a function of the optimizer as schedule, got {described(schedule)}. [own-schedule-kind]")
    return OwnOptimizer(given, schedule), {"name": called(given)}


def _prepare(model: nn.Module, loss: Loss, group_size: int) -> None:
    """Sets the temperature and the bias of a loss in a model."""
    if isinstance(model, SimCLRModel | TwoTowerModel):
        loss.prepare(model, group_size)
        if loss.temperature is not None:
            model.set_temperature(loss.temperature)
    elif loss.temperature is not None:
        raise UserError(
            f"{type(model).__name__} has a temperature of its own: leave the temperature out of the loss. [own-temperature]"
        )


__all__ = ["Privacy", "Run", "StepSummary", "Trainer"]
