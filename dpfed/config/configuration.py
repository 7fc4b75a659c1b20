"""The configuration of a run as a value: `Config`, and `ResolvedConfig`, in which every automatic choice has been made.

Every key has the usual name in the literature, a sensible default, and a line that explains it. The constructor of `Config`
refuses a key that is given and has no effect. Sections declare the conditions between their own keys
(`dpfed.schema.conditions`); the end of this file declares the conditions across sections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from dpfed.config.sections import (
    AdaptationConfig,
    BoundingConfig,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PrivacyConfig,
    ProgressConfig,
    PublicConfig,
    Section,
    TextViewsConfig,
    TrainingConfig,
    ViewsConfig,
)
from dpfed.errors import UserError
from dpfed.models.options import PROCEDURAL
from dpfed.privacy.method import Method, method_named
from dpfed.schema.conditions import Across, Conditions, When, idle_error, is_given, listed, them
from dpfed.schema.wording import problem


class Config(Section):
    """The configuration of a whole run.

    Raises:
        UserError: If a key is unknown, a value is not allowed, a given key has no effect, or the warm-up is longer than
            the run.
    """

    name: str = Field(
        "run",
        pattern="^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        max_length=100,
        description="name of the run, and of its folder in runs/",
    )
    data: DataConfig = DataConfig()
    views: ViewsConfig = ViewsConfig()
    text_views: TextViewsConfig = TextViewsConfig()
    model: ModelConfig = ModelConfig()
    adaptation: AdaptationConfig = AdaptationConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    bounding: BoundingConfig = BoundingConfig()
    public: PublicConfig = PublicConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    progress: ProgressConfig = ProgressConfig()
    diagnostics: Literal["none", "private"] = Field(
        "none", description="'private': release loss, clip rate and norms with noise; epsilon covers them"
    )

    def __init__(self, /, **tree: Any) -> None:
        self._fill(tree)
        self.refuse_idle()

    @classmethod
    def unchecked(cls, /, **tree: Any) -> Self:
        """Makes a configuration in which keys without an effect may be given.

        Raises:
            UserError: If a key is unknown, or a value is not allowed.
        """
        config = cls.__new__(cls)
        config._fill(tree)
        return config

    def _fill(self, tree: dict[str, Any]) -> None:
        try:
            super().__init__(**tree)
        except ValidationError as error:
            raise UserError(f"{problem(error, type(self))}. [config-value-invalid]") from None

    def refuse_idle(self, origin: str = "config") -> None:
        """Refuses keys without effect whose values differ from their defaults, and a warm-up that is longer than the run.

        The constructor calls this check. `model_copy`, which returns a changed configuration, does not call it.

        Args:
            origin: Origin of the configuration, such as its file, for the message.

        Raises:
            UserError: If there are such keys or such a warm-up; the message names the keys, the reason, and the remedy.
        """
        _CONDITIONS.refuse(self, origin)
        warmup, steps = self.optimizer.warmup, self.privacy.steps
        if warmup and warmup > steps:
            raise UserError(
                f"{origin}: optimizer.warmup = {warmup} exceeds privacy.steps = {steps}: lower the warm-up, or "
                "raise privacy.steps. [config-warmup]"
            )

    def without_effect(self) -> dict[str, When]:
        """Returns all keys without an effect, given or not, each with the first of its conditions that fails."""
        return _CONDITIONS.without_effect(self)

    def effective(self) -> Self:
        """Returns the configuration with every key that has no effect reset to its default."""
        return self.model_copy(update=_CONDITIONS.effective(self))

    @property
    def method(self) -> Method:
        """The method that `bounding.method` names."""
        return method_named(self.bounding.method)

    @property
    def cached_views(self) -> int:
        """V, the number of views of each image whose features are computed once (`views.cached`).

        0: no such views; always 0 for private moments, which count their views in an option of their own.
        """
        return self.views.cached if self.images_are_frozen else 0

    @property
    def computes_features(self) -> bool:
        """Returns whether the features of frozen towers are computed once and reused in all steps."""
        return self.method.closed_form or self.cached_views > 0

    @property
    def images_are_frozen(self) -> bool:
        """Returns whether the image tower comes from another library (open_clip, timm or torchvision) and is not trained.

        For private moments, which train no tower, the answer is right only for a resolved configuration.
        """
        return self.model.external and self._image_training == "frozen"

    @property
    def _image_training(self) -> str:
        return self.adaptation.of_images(self.model.kind)

    @property
    def is_aligned(self) -> bool:
        """Returns whether the two features of a record are similar already before training.

        They are similar if both come from views of one image, or if the image and the text tower were trained together.
        """
        return self.model.kind != "image-text" or self.model.start is not None

    @property
    def has_public_basis(self) -> bool:
        """Returns whether private moments use a basis computed from a public store."""
        return self.method.closed_form and self.bounding.options.get("basis") == "store"

    @property
    def reads_public_store(self) -> bool:
        """Returns whether the run needs a public store at `public.path`."""
        return self.has_public_basis or (self.method.public_records and self.public.source == "store")

    @property
    def writes_store(self) -> bool:
        """Returns whether the run writes a record store.

        The store may be for the run's own records, public records, starting weights, or the basis of private moments.
        """
        if self.data.from_nothing or self.data.source == "scenes" or self.model.start == PROCEDURAL:
            return True
        if self.method.public_records and self.public.is_generated:
            return True
        if self.method.closed_form and not self.is_aligned:
            return True  # images and captions to compute a basis, and the basis
        return self.data.imports and not self.data.finds_store

    def dump(self, defaults: bool = True, comments: Sequence[str] = ()) -> str:
        """Returns the configuration as TOML.

        Args:
            defaults: Whether to write keys at their defaults.
            comments: Lines of a comment above the configuration.
        """
        tree = _without_none(self.model_dump(mode="json", exclude_defaults=not defaults))
        above = "".join(f"# {' '.join(line.split())}\n" for line in comments)
        return above + tomli_w.dumps({name: section for name, section in tree.items() if defaults or section != {}})


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


class ResolvedConfig(Config):
    """A configuration with which a run can start: every automatic choice has been made. `dpfed.runs.build.build` makes it.

    Paths are absolute. These values are set: the size of the images and how they become square, the device, the engine (unless
    the method has its own), and the bias of a loss that has one. `model.digest` is set if a tower comes from another library,
    and `adaptation.image` is set if the image tower comes from another library.
    """

    @model_validator(mode="after")
    def _nothing_left(self) -> ResolvedConfig:
        own_engine = not self.method.picks_engine
        left = {
            "data.size": self.data.size is None,
            "data.resize": self.data.resize == "model",
            "training.device": self.training.device == "auto",
            "bounding.engine": self.bounding.engine == "auto" and not own_engine,
            "objective.bias": self.objective.loss.bias is not None and self.objective.bias is None,
            "model.digest": (self.model.external or self.model.pretrained_text) and self.model.digest is None,
            "adaptation.image": self.model.external and self.adaptation.image == "auto",
        }
        if names := [name for name, is_left in left.items() if is_left]:
            raise ValueError(f"no value has been chosen for {', '.join(names)}: dpfed.runs.build.build makes these choices")
        return self


def deciding(key: str) -> tuple[str, ...]:
    """Returns the other keys that decide whether a key has an effect; empty: the key always has an effect."""
    return _CONDITIONS.deciding(key)


def refuse_unmeasured(config: Config, tasks: tuple[str, ...]) -> None:
    """Refuses evaluation keys that matter only for tasks which the run's records do not allow.

    If the configuration sets ``evaluation.tasks``, nothing is refused.

    Args:
        config: Configuration of the run.
        tasks: Tasks that the run's records allow; empty: nothing is refused.

    Raises:
        UserError: If the configuration gives such keys values other than their defaults.
    """
    if config.evaluation.tasks or not tasks:
        return
    measured = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"tasks": tasks})})
    idle = [key for key in measured.without_effect() if key.startswith("evaluation.") and is_given(config, key)]
    if idle:
        allowed = f"the task{'s' * (len(tasks) > 1)} {' and '.join(tasks)}"
        said = f"{listed(idle)} no effect: these records allow only {allowed}. Leave {them(idle)} out, or give other records"
        raise idle_error(config.name, said, idle)


def _only_if(keys: str, because: str, holds: Callable[[Config], bool], remedy: str | Callable[[], str]) -> Across:
    return Across(keys, When(because, holds, remedy))


def _for_methods(keys: str, holds: Callable[[Method], bool], why: str, choice: str) -> Across:
    return _only_if(keys, "bounding.method", lambda c: holds(c.method), f"{why}; set bounding.method = '{choice}'")


_CONDITIONS = Conditions(
    Config,
    _only_if(
        "data.stores",
        "data.source data.path",
        lambda c: c.writes_store,
        "no store is written; give data that an importer reads",
    ),
    _only_if(
        "views.cached",
        "adaptation.image model.image model.kind",
        lambda c: c.images_are_frozen,
        "the image tower is trained, so its features change; set adaptation.image = 'frozen' with a tower of open_clip, timm "
        "or torchvision",
    ),
    _only_if(
        "data.keep_features",
        "data.source",
        lambda c: not c.data.is_own,
        "features of a data set of your own are never kept; give a record store, or data that an importer reads",
    ),
    _only_if(
        "data.keep_features",
        "views.transform",
        lambda c: c.views.transform is None,
        "features of views that your own transform makes are never kept; remove views.transform",
    ),
    _only_if(
        "data.keep_features",
        "bounding.method views.cached adaptation.image",
        lambda c: c.computes_features,
        "this run keeps no features, because it computes them anew in every step; set views.cached",
    ),
    _only_if(
        "text_views.* evaluation.match evaluation.templates",
        "model.kind",
        lambda c: c.model.reads_text,
        "set model.kind = 'image-text' or 'open_clip'",
    ),
    _only_if(
        "text_views.*",
        "views.cached model.text",
        lambda c: not (c.cached_views and c.model.pretrained_text),
        "features of the captions are computed once; set views.cached = 0 or model.text = 'transformer'",
    ),
    _only_if(
        "adaptation.text adaptation.text_layers",
        "model.kind",
        lambda c: c.model.kind == "open_clip",
        "set model.kind = 'open_clip'",
    ),
    _only_if(
        "adaptation.image adaptation.rank adaptation.alpha adaptation.image_layers",
        "model.kind model.image",
        lambda c: c.model.external,
        "set model.kind = 'open_clip' or model.image = 'timm/NAME'",
    ),
    _only_if(
        "adaptation.rank adaptation.alpha",
        "adaptation.image adaptation.text",
        lambda c: c.model.timm is not None or "lora" in (c._image_training, c.adaptation.text),
        "set adaptation.image or adaptation.text to 'lora'",
    ),
    _only_if(
        "adaptation.rank adaptation.alpha adaptation.image_layers",
        "model.image adaptation.image",
        lambda c: c.model.timm is None or c.adaptation.image == "lora",
        "a timm encoder has adapters only with 'lora'; set adaptation.image = 'lora'",
    ),
    _only_if(
        "adaptation.image_layers", "adaptation.image", lambda c: c._image_training == "lora", "set adaptation.image = 'lora'"
    ),
    _for_methods(
        "public.records public.centring public.source public.generated public.half",
        lambda method: method.public_records,
        "no public record joins a group",
        "public",
    ),
    _only_if(
        "public.path public.digest",
        "bounding.method bounding.options",
        lambda c: c.method.public_records or c.has_public_basis,
        "no public record is read; set bounding.method = 'public', or bounding.options.basis = 'store' of private moments",
    ),
    _for_methods(
        "bounding.clip_norm bounding.clipping privacy.epsilon privacy.noise_multiplier privacy.noise privacy.delta "
        "privacy.accountant",
        lambda method: method.private,
        "this method clips nothing, adds no noise and promises nothing",
        "group",
    ),
    _for_methods(
        "privacy.accountant", lambda method: len(method.accountants) > 1, "only RDP can account for this method", "group"
    ),
    _for_methods(
        "views.cached privacy.batch privacy.steps bounding.clip_norm bounding.clipping bounding.group_size optimizer.* "
        "text_views.* adaptation.rank adaptation.alpha adaptation.image_layers adaptation.text_layers adaptation.text",
        lambda method: not method.closed_form,
        "every record takes part in each of this method's two steps, and no gradient is computed",
        "group",
    ),
    _only_if("progress.*", "diagnostics", lambda c: c.diagnostics == "private", "set diagnostics = 'private'"),
    _only_if(
        "optimizer.schedule",
        "optimizer.warmup privacy.steps",
        lambda c: c.optimizer.warmup + 1 < c.privacy.steps,
        "the schedule needs two steps or more after the warm-up; raise privacy.steps or lower optimizer.warmup",
    ),
)
