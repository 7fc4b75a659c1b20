"""Sections of a configuration for the records, for their views, and for the public records that join every group of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpfed.paths import is_store
from dpfed.schema.conditions import When, only
from dpfed.schema.named import Arguments, is_name
from dpfed.schema.section import Items, Pair, Section

Resize = Literal["model", "crop", "squash", "pad"]

_FROM_NOTHING = ("shapes", "procedural")  # sources that read no file
_IMPORTER = "set data.source to the name of an importer"
# Sources that each option applies to. Every source that is not named here is an importer.
_GENERATED = only("data.source", *_FROM_NOTHING)
_HALVED = only("data.source", "shapes", "scenes")
_READ = When(
    "data.source",
    lambda data: not data.from_nothing and not data.is_own,
    "set data.source = 'store' or to the name of an importer",
)
_IMPORTED = When("data.source", lambda data: data.imports, f"{_IMPORTER} (other records are already divided into splits)")
_LABELLED = When(
    "data.source",
    lambda data: data.imports or data.source == "scenes",
    f"{_IMPORTER} (generated records are always public; for a record store, its header says whether the records are public)",
)
_SPLITS_OPEN = When(
    "data.path",
    lambda data: not data.finds_store,
    "data.path is a record store, which was divided when it was imported; set data.path to what it was imported from",
)
_LABEL_OPEN = When(
    "data.path",
    lambda data: not data.finds_store,
    "data.path is a record store, which says itself whether its records are public; set data.path to what it was imported from",
)
_OWN = When("data.source", lambda data: data.is_own, "set data.source = 'package.module:function'")


class DataConfig(Section):
    """Section ``[data]``: which records a run uses, and whether they are public."""

    source: str = Field(
        "shapes",
        description="'shapes', 'scenes' or 'procedural' (generated), 'store', an importer, or 'package.module:function', "
        "which returns dpfed.Records",
    )
    options: Annotated[Arguments, _OWN] = Field({}, description="arguments of the function that source names")
    path: Annotated[str | None, _READ] = Field(None, description="a record store, or what the importer reads")
    records: Annotated[int, _GENERATED] = Field(
        20_000, ge=16, le=10_000_000, description="number of training records to generate (source = 'shapes' or 'procedural')"
    )
    validation: Annotated[int, _IMPORTED, _SPLITS_OPEN] = Field(
        0,
        ge=0,
        description="number of training records that an import holds out for validation; only for a source without this split",
    )
    test: Annotated[int, _IMPORTED, _SPLITS_OPEN] = Field(
        0,
        ge=0,
        description="number of training records that an import holds out for test; only for a source without this split",
    )
    half: Annotated[Literal["all", "first", "second"], _HALVED] = Field(
        "all", description="half of the colours (shapes) or classes (scenes)"
    )
    size: int | None = Field(
        None,
        ge=8,
        le=4096,
        description="side of the square images, pixels; default 32, or what a model of open_clip, timm or torchvision expects",
    )
    resize: Resize = Field("model", description="how an image becomes square")
    stores: str = Field("stores", description="folder for the stores that a run imports or generates")
    keep_features: bool = Field(
        True, description="keep the features of frozen towers beside the record store, for later runs (docs/data.md)"
    )
    public: Annotated[bool, _LABELLED, _LABEL_OPEN] = Field(
        False, description="the records are public: the report may show them"
    )

    @property
    def from_nothing(self) -> bool:
        """Whether the records are generated without reading any file."""
        return self.source in _FROM_NOTHING

    @property
    def imports(self) -> bool:
        """Whether `source` is the name of an importer."""
        return self.source not in ("store", "scenes", *_FROM_NOTHING) and not self.is_own

    @property
    def is_own(self) -> bool:
        """Whether `source` names a function of the user's own."""
        return is_name(self.source)

    @property
    def finds_store(self) -> bool:
        """Whether `path` is a record store although `source` is not ``"store"``."""
        if self.path is None or self.source == "store" or self.from_nothing or self.is_own:
            return False
        try:
            return is_store(Path(self.path).expanduser())
        except (OSError, RuntimeError):  # opening the path will report the error
            return False


_JITTER = When("views.jitter", lambda views: views.jitter > 0, "set views.jitter, the probability of colour jitter")
_JITTERED = When(
    "views.brightness views.contrast views.saturation views.hue",
    lambda views: any((views.brightness, views.contrast, views.saturation, views.hue)),
    "give one of these a value above 0",
)
_COLOUR = When("views.grayscale", lambda views: views.grayscale < 1, "no image has a colour; lower views.grayscale")
_BLUR = When("views.blur", lambda views: views.blur > 0, "set views.blur, the probability of blur")
_OURS = When(
    "views.transform", lambda views: views.transform is None, "a transform of your own makes the views; give no views.transform"
)
_TRANSFORM = When("views.transform", lambda views: views.transform is not None, "set views.transform")
_RANGES = {"crop_scale": (1e-4, 1.0), "crop_ratio": (0.01, 100.0), "blur_sigma": (1e-3, 1e3)}


class ViewsConfig(Section):
    """Options of the random views of an image. For every record and view, separate parameters are drawn."""

    transform: str | None = Field(
        None, description="'package.module:object': makes a view of an image; replaces all options from crop_scale to cached"
    )
    options: Annotated[Arguments, _TRANSFORM] = Field(
        {}, description="arguments, if views.transform names a class or a factory"
    )
    count: Annotated[int | None, _TRANSFORM] = Field(
        None, ge=1, le=64, description="number of views of an image; default: 2, or 1 for models that read text"
    )
    plain: Annotated[str | None, _TRANSFORM] = Field(
        None, description="'package.module:object': makes the image for evaluation; default: the image is scaled and cropped"
    )
    shape: Annotated[Items[int] | None, _TRANSFORM] = Field(
        None, description="channels, height and width of a view; a run writes this key itself"
    )
    crop_scale: Annotated[Pair, _OURS] = Field((1.0, 1.0), description="area of the random resized crop, fraction of the image")
    crop_ratio: Annotated[Pair, _OURS] = Field((1.0, 1.0), description="aspect ratio of the crop, width / height")
    flip: Annotated[float, _OURS] = Field(0.0, ge=0, le=1, description="probability of a horizontal flip")
    jitter: Annotated[float, _OURS, _JITTERED] = Field(0.0, ge=0, le=1, description="probability of colour jitter")
    brightness: Annotated[float, _OURS, _JITTER] = Field(
        0.4, ge=0, le=1, description="colour jitter: 0.4 multiplies brightness by 0.6 to 1.4"
    )
    contrast: Annotated[float, _OURS, _JITTER] = Field(
        0.4, ge=0, le=1, description="colour jitter: 0.4 multiplies contrast by 0.6 to 1.4"
    )
    saturation: Annotated[float, _OURS, _JITTER, _COLOUR] = Field(
        0.4, ge=0, le=1, description="colour jitter: 0.4 multiplies saturation by 0.6 to 1.4"
    )
    hue: Annotated[float, _OURS, _JITTER, _COLOUR] = Field(
        0.1, ge=0, le=0.5, description="colour jitter: 0.1 turns the hue by up to 36 degrees"
    )
    grayscale: Annotated[float, _OURS] = Field(0.0, ge=0, le=1, description="probability of losing colour")
    blur: Annotated[float, _OURS] = Field(0.0, ge=0, le=1, description="probability of Gaussian blur")
    blur_sigma: Annotated[Pair, _OURS, _BLUR] = Field(
        (0.1, 2.0), description="standard deviation of the blur, pixels of a 224-pixel image"
    )
    cached: Annotated[int, _OURS] = Field(
        0,
        ge=0,
        le=1024,
        description="frozen image tower: make so many views of each image once, and reuse their features in all steps; 0: off",
    )

    @field_validator("transform", "plain")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        if name is not None and not is_name(name):
            raise ValueError("expected the name of an object, such as 'my_package.views:augment'")
        return name

    @model_validator(mode="after")
    def _ranges(self) -> ViewsConfig:
        for name, (least, most) in _RANGES.items():
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} must be [low, high] with 0 < low <= high, got [{low}, {high}]")
            if not least <= low <= high <= most:
                what = " (a fraction of the image)" if name == "crop_scale" else ""
                raise ValueError(f"{name} must lie between {least:g} and {most:g}{what}, got [{low}, {high}]")
        return self


class TextViewsConfig(Section):
    """Options of the random views of a caption (DP-GCL, appendix B.3). Separate changes are drawn for every record and view."""

    sentence_swap: float = Field(0.0, ge=0, le=1, description="probability that two sentences change places; DP-GCL: 0.5")
    word_swap: float = Field(0.0, ge=0, le=1, description="probability that a word changes places with the next; DP-GCL: 0.3")
    word_delete: float = Field(0.0, ge=0, le=1, description="probability that a word is left out; DP-GCL: 0.2")


_OF_STORE = only("public.source", "store")


class PublicConfig(Section):
    """Section ``[public]``: the public records that join the group of every drawn record (bounding.method = 'public')."""

    records: int = Field(3, ge=1, le=1024, description="M: number of public records in every group")
    centring: float = Field(
        0.2,
        ge=0,
        le=100,
        description="weight of the loss term that trains two centres; one is subtracted from the embeddings of private "
        "records, the other from those of public records; 0: no centres",
    )
    source: Literal["store", "shapes", "procedural"] = Field(
        "store", description="a record store, generated captioned shapes, or procedural images"
    )
    path: Annotated[str | None, _OF_STORE] = Field(None, description="source = 'store': a record store that is marked public")
    digest: Annotated[str | None, _OF_STORE] = Field(
        None, description="the fingerprint of the store's records; a run writes this key itself"
    )
    generated: Annotated[int, only("public.source", *_FROM_NOTHING)] = Field(
        20_000, ge=16, le=10_000_000, description="number of records to generate, where the source is not a store"
    )
    half: Annotated[Literal["all", "first", "second"], only("public.source", "shapes")] = Field(
        "all", description="source = 'shapes': half of the colours"
    )

    @property
    def is_generated(self) -> bool:
        """Whether the public records are generated."""
        return self.source in _FROM_NOTHING
