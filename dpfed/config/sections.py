"""The sections of a configuration: every key, its default, and a line that says what it does.

What a value has to be by itself stands here; whether a key has an effect beside the others stands in `dpfed.config.effects`.
"""

from __future__ import annotations

import copy
import importlib.util
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, create_model, field_validator, model_validator

from dpfed.errors import nearest
from dpfed.objectives import OBJECTIVES, Objective, keys_of_losses
from dpfed.privacy.method import METHODS
from dpfed.privacy.plan_checks import wrong_clip_norm, wrong_stability
from dpfed.schema.section import Items, Pair, Section
from dpfed.schema.wording import complaint

SIZE = 32  # side of the images, pixels, where neither the user nor the architecture says
PROCEDURAL = "procedural"  # of model.start: weights that were trained on procedural images alone


class DataConfig(Section):
    """Which records, and whether anyone may see them."""

    source: str = Field("shapes", description="'shapes', 'scenes' or 'procedural' (generated), 'store', or an importer's name")
    path: str | None = Field(None, description="a record store, or what the importer reads")
    records: int = Field(
        20_000, ge=16, le=10_000_000, description="training records to generate (source = 'shapes' or 'procedural')"
    )
    validation: int = Field(0, ge=0, description="training records held out for validation when importing")
    test: int = Field(0, ge=0, description="training records held out for test when importing a source without a test split")
    half: Literal["all", "first", "second"] = Field("all", description="half of the colours (shapes) or classes (scenes)")
    size: int | None = Field(
        None, ge=8, le=4096, description="side of the square images, pixels; default 32, or what open_clip or timm expects"
    )
    resize: Literal["model", "crop", "squash", "pad"] = Field("model", description="how an image becomes square")
    stores: str = Field("stores", description="folder for the stores that a run imports or generates")
    public: bool = Field(False, description="the records are public: the report may show them")


_RANGES = {"crop_scale": (1e-4, 1.0), "crop_ratio": (0.01, 100.0), "blur_sigma": (1e-3, 1e3)}


class ViewsConfig(Section):
    """Random views of an image; every record and view draws its own parameters."""

    crop_scale: Pair = Field((1.0, 1.0), description="area of the random resized crop, fraction of the image")
    crop_ratio: Pair = Field((1.0, 1.0), description="aspect ratio of the crop, width / height")
    flip: float = Field(0.0, ge=0, le=1, description="probability of a horizontal flip")
    jitter: float = Field(0.0, ge=0, le=1, description="probability of colour jitter")
    brightness: float = Field(0.4, ge=0, le=1, description="colour jitter: 0.4 multiplies brightness by 0.6 to 1.4")
    contrast: float = Field(0.4, ge=0, le=1, description="colour jitter: 0.4 multiplies contrast by 0.6 to 1.4")
    saturation: float = Field(0.4, ge=0, le=1, description="colour jitter: 0.4 multiplies saturation by 0.6 to 1.4")
    hue: float = Field(0.1, ge=0, le=0.5, description="colour jitter: 0.1 turns the hue by up to 36 degrees")
    grayscale: float = Field(0.0, ge=0, le=1, description="probability of losing colour")
    blur: float = Field(0.0, ge=0, le=1, description="probability of Gaussian blur")
    blur_sigma: Pair = Field((0.1, 2.0), description="standard deviation of the blur, pixels of a 224-pixel image")
    cached: int = Field(
        0,
        ge=0,
        le=1024,
        description="frozen image tower: number of views of each image whose features are computed once; 0: off",
    )

    @model_validator(mode="after")
    def _ranges(self) -> ViewsConfig:
        for name, (least, most) in _RANGES.items():
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} must be [low, high] with 0 < low <= high, got [{low}, {high}]")
            if not least <= low <= high <= most:
                what = " (a fraction of the image)" if name == "crop_scale" else ""
                raise ValueError(f"{name} must lie within {least:g} and {most:g}{what}, got [{low}, {high}]")
        return self


class TextViewsConfig(Section):
    """Random views of a caption (DP-GCL, appendix B.3); every record and view draws its own."""

    sentence_swap: float = Field(0.0, ge=0, le=1, description="probability that two sentences change places; the paper: 0.5")
    word_swap: float = Field(0.0, ge=0, le=1, description="probability of each word to swap with the next; the paper: 0.3")
    word_delete: float = Field(0.0, ge=0, le=1, description="probability of each word to be left out; the paper: 0.2")


_ENCODERS = ("cnn", "resnet18", "resnet34", "resnet50")
_TIMM, _TORCHVISION = "timm/", "torchvision/"
_OWN_TEXT = "transformer"
SENTENCES = "sentence-transformers/"  # of model.text: a pretrained tower by its name on the hub


class ModelConfig(Section):
    """The encoder that is trained."""

    kind: Literal["image", "image-text", "open_clip"] = Field(
        "image", description="one tower with a projection head, two small towers, or the two towers of an open_clip model"
    )
    architecture: str | None = Field(None, description="a name that open_clip knows, a JSON file, or 'local-dir:DIR'")
    weights: str | None = Field(
        None, description="a file, a pretrained tag, or (timm) a folder; none: random, or local-dir's own"
    )
    digest: str | None = Field(None, description="a run writes it: the hash of its open_clip or timm architecture")
    start: str | None = Field(
        None, description="starting weights: 'procedural' (`dpfed start`), or a run, its model/ or a file; none: random"
    )
    start_digest: str | None = Field(None, description="a run writes it: the hash of its starting weights")
    tokenizer: Literal["own", "words"] = Field("own", description="the model's own, or hashed words (random weights)")
    image: str = Field(
        "cnn",
        description="'cnn', 'resnet18', 'resnet34', 'resnet50', or 'timm/NAME' or 'torchvision/NAME', an encoder that does not "
        "mix records",
    )
    stem: Literal["cifar", "imagenet"] = Field("cifar", description="first layer of a ResNet: 3x3, or 7x7 with max-pooling")
    width: int = Field(32, ge=4, le=4096, description="channels of the first stage of 'cnn', or 64 for a standard ResNet")
    features: Literal["last", "pyramid"] = Field(
        "last", description="the last stage's mean, or every stage's means over quadrants (a larger head, no other weight)"
    )
    normalisation: Literal["group", "layer", "batch"] = Field(
        "group", description="behind each convolution; 'batch': over one group and public anchors (docs/methods.md)"
    )
    anchors: str | None = Field(None, description="normalisation = 'batch': a public record store; none: generated shapes")
    anchor_count: int = Field(32, ge=2, le=4096, description="M: public images in every group (normalisation = 'batch')")
    weight_standardisation: bool = Field(False, description="convolutions use weights of mean 0 and variance 1")
    text: str = Field(
        _OWN_TEXT,
        description="text encoder (kind = 'image-text'): 'transformer' (small, trained), 'sentence-transformers/NAME', or a "
        "folder of the Hugging Face format (pretrained, frozen, with a linear head)",
    )
    text_width: int = Field(64, ge=8, le=8192, description="width of the text encoder; a multiple of text_heads")
    text_layers: int = Field(2, ge=1, le=256, description="transformer blocks of the text encoder")
    text_heads: int = Field(2, ge=1, le=256, description="attention heads of each block")
    vocabulary: int = Field(1024, ge=64, le=1_000_000, description="hash buckets of the word tokenizer")
    context: int = Field(24, ge=4, le=4096, description="words that the model reads of a caption")
    embedding: int = Field(64, ge=2, le=65_536, description="dimensions of the space in which views are contrasted")
    head_hidden: int = Field(128, ge=2, le=65_536, description="hidden width of the projection head (kind = 'image')")

    @field_validator("normalisation")
    @classmethod
    def _there(cls, normalisation: str) -> str:
        if normalisation == "batch" and importlib.util.find_spec("dpfed.baselines") is None:
            raise ValueError("expected one of group, layer: BatchNorm is in dpfed.baselines, which is not installed")
        return normalisation

    @property
    def reads_text(self) -> bool:
        """Whether there is a text tower."""
        return self.kind != "image"

    @property
    def timm(self) -> str | None:
        """timm's name of the image encoder, or torchvision's with its prefix, where it is one of theirs."""
        ours = self.kind != "open_clip" and self.image.startswith((_TIMM, _TORCHVISION))
        return self.image.removeprefix(_TIMM) if ours else None

    @property
    def pretrained_text(self) -> str | None:
        """Where a pretrained text tower is, in a model that has one beside an image encoder."""
        return self.text if self.kind == "image-text" and self.text != _OWN_TEXT else None

    @property
    def external(self) -> bool:
        """Whether the image tower is one of open_clip's, timm's or torchvision's."""
        return self.kind == "open_clip" or self.timm is not None

    @field_validator("image")
    @classmethod
    def _known(cls, image: str) -> str:
        if image not in _ENCODERS and not image.startswith((_TIMM, _TORCHVISION)):
            hint = f"did you mean '{_TIMM}{image}'?" if "_" in image else nearest(image, _ENCODERS)
            raise ValueError(f"expected one of {', '.join(_ENCODERS)}, or timm/NAME such as timm/vit_tiny_patch16_224; {hint}")
        return image

    @model_validator(mode="after")
    def _named(self) -> ModelConfig:
        if self.kind == "open_clip" and self.architecture is None:
            raise ValueError("kind = 'open_clip' needs model.architecture, such as 'ViT-B-32'")
        return self


Layer = Literal["q", "k", "v", "out", "mlp"]
Training = Literal["full", "last", "bias", "lora", "frozen"]


class AdaptationConfig(Section):
    """Which parts of an open_clip model or a timm encoder are trained. Frozen parts cost no gradient, noise or traffic."""

    image: Literal["auto", "full", "last", "bias", "lora", "frozen"] = Field(
        "auto",
        description="image tower: all weights, its last block, biases and scales, low-rank adapters, or nothing (LiT); "
        "auto: lora (open_clip), full (timm)",
    )
    text: Literal["full", "lora", "frozen"] = Field("lora", description="text tower: all weights, adapters, or nothing")
    rank: int = Field(16, ge=1, le=4096, description="r of the adapters B A (Hu et al. 2022)")
    alpha: float = Field(16.0, ge=1e-3, le=1e6, description="the adapters' output is multiplied by alpha / rank")
    image_layers: Items[Layer] = Field(("q", "v"), min_length=1, description="where the image tower gets adapters")
    text_layers: Items[Layer] = Field(("q", "v"), min_length=1, description="where the text tower gets adapters")

    def of_images(self, kind: str) -> Training:
        """What of the image tower is trained in a model of a kind, with the choice of ``auto`` made."""
        return self.image if self.image != "auto" else "lora" if kind == "open_clip" else "full"

    @field_validator("image_layers", "text_layers")
    @classmethod
    def _once(cls, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        if len(set(layers)) < len(layers):
            raise ValueError("each layer may be listed only once")
        return layers


def _keys_of_losses() -> Any:
    """The keys of all losses side by side, each described with the names of the losses that have it."""
    fields: dict[str, Any] = {}
    for key, losses in keys_of_losses().items():
        field = copy.copy(OBJECTIVES[losses[0]].options.model_fields[key])
        field.description = f"{' and '.join(losses)}: {field.description}"
        fields[key] = (field.annotation, field)
    titles = "; ".join(f"{name}: {loss.title}" for name, loss in OBJECTIVES.items())
    names: Any = Literal[tuple(OBJECTIVES)]  # type: ignore[valid-type]
    return create_model("KeysOfLosses", __base__=Section, name=(names, Field("infonce", description=titles)), **fields)


class ObjectiveConfig(_keys_of_losses()):  # type: ignore[misc]  # its keys are those of the files in dpfed/objectives
    """The loss of one group."""

    @model_validator(mode="after")
    def _fits(self) -> ObjectiveConfig:
        try:
            self.options  # noqa: B018 refuses values that do not go together
        except ValidationError as error:
            raise ValueError(complaint(error)) from None
        return self

    @property
    def loss(self) -> Objective:
        """What `name` names."""
        return OBJECTIVES[self.name]

    @property
    def options(self) -> Section:
        """The keys of the loss, and no other's."""
        kind = self.loss.options
        return kind(**{key: getattr(self, key) for key in kind.model_fields})


class BoundingConfig(Section):
    """How one record's influence on a step is bounded."""

    method: str = Field("group", description="what is clipped; 'none': no privacy at all (docs/methods.md has them all)")
    group_size: int = Field(16, description="S: expected records in a group")
    clip_norm: float = Field(1.0, description="C: the largest L2 norm of what is clipped")
    clipping: Literal["fixed", "automatic", "adaptive"] = Field(
        "fixed", description="to clip_norm; automatic: normalised, no C to tune; adaptive: C follows progress.quantile"
    )
    stability: float = Field(0.01, description="clipping = 'automatic': added to the norm by which a gradient is divided")
    max_group_size: int | None = Field(None, description="the most records of a group; further ones are dropped")
    max_batch: int | None = Field(None, ge=2, description="sample and logit: cap of the batch; default B + 4 sqrt(B)")
    options: dict[str, bool | int | float | str] = Field({}, description="the method's own options (docs/methods.md)")
    engine: Literal["auto", "loop", "layerwise"] = Field("auto", description="how group gradients are computed")
    microbatch: int = Field(512, ge=1, description="records whose views are in memory at a time")
    pass_records: int | None = Field(
        None, ge=8, le=65_536, description="layerwise: records of a pass; default: by a GPU's memory, or 32"
    )

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in METHODS:
            raise ValueError(f"expected one of {', '.join(METHODS)}")
        return method

    @field_validator("clip_norm", "stability")
    @classmethod
    def _meant(cls, value: float, key: ValidationInfo) -> float:
        if wrong := wrong_clip_norm(value) if key.field_name == "clip_norm" else wrong_stability(value):
            raise ValueError(wrong)
        return value


class PublicConfig(Section):
    """Public records that join the group of every drawn record (bounding.method = 'public')."""

    records: int = Field(3, ge=1, le=1024, description="M: public records in every group")
    centring: float = Field(
        0.2, ge=0, le=100, description="how much centres follow the embeddings of private and public records; 0: no centres"
    )
    source: Literal["store", "shapes", "procedural"] = Field(
        "store", description="a record store, generated captioned shapes, or procedural images"
    )
    path: str | None = Field(None, description="source = 'store': a record store that is marked public")
    digest: str | None = Field(None, description="a run writes it: the fingerprint of the store's records")
    generated: int = Field(20_000, ge=16, le=10_000_000, description="records to generate, where the source is not a store")
    half: Literal["all", "first", "second"] = Field("all", description="source = 'shapes': half of the colours")


class PrivacyConfig(Section):
    """The promise. Give `epsilon` (the noise is calibrated) or `noise_multiplier` (epsilon follows)."""

    epsilon: float | None = Field(None, description="the promise for the whole run: smaller is more private, noisier")
    noise_multiplier: float | None = Field(None, description="sigma: standard deviation of the noise over the sensitivity")
    delta: float | None = Field(None, description="default 1/(N ln N)")
    noise: Literal["gaussian", "discrete"] = Field(
        "gaussian", description="gaussian: fast, in floating point; discrete: proven to the last bit, on a grid"
    )
    accountant: Literal["pld", "rdp"] = Field(
        "pld", description="how epsilon is computed; pld is tighter, rdp is used in the papers"
    )
    unit: Literal["record", "user"] = Field("record", description="what is protected: a record, or all records of one unit")
    per_unit: int = Field(1, ge=1, description="unit = 'user': the most records of a unit that take part in a step")
    batch: int = Field(1024, description="B: expected records (or units) in a step; each is drawn with q = B/N")
    steps: int = Field(100, description="T: noisy steps in the whole run")
    not_covered: str | None = Field(
        None, description="under a lifetime budget: the reason for releases that it does not count (docs/budget.md)"
    )
    seed: int | None = Field(None, description="for tests only: a seed voids the secrecy of the noise and marks the card")


class OptimizerConfig(Section):
    """How the noisy gradient updates the weights (post-processing: costs no privacy)."""

    name: Literal["sgd", "adam", "adamw", "lars"] = Field("adam", description="how the noisy gradient becomes a step")
    learning_rate: float = Field(1e-3, ge=1e-12, le=1e9, description="size of a step, at the end of the warm-up")
    momentum: float = Field(0.9, ge=0, lt=1, description="for sgd and lars")
    weight_decay: float = Field(
        0.0, ge=0, le=1, description="this fraction of the weights is added to the gradient; adamw: decoupled from it"
    )
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="learning rate after the warm-up; cosine ends near 0"
    )
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the weights' moving average; 0 is off")

    @model_validator(mode="after")
    def _decays(self) -> OptimizerConfig:
        taken = self.learning_rate * self.weight_decay
        if self.name in ("sgd", "adamw") and taken > 1:
            raise ValueError(
                f"learning_rate times weight_decay is what a step of {self.name} takes away from the weights, expected at most "
                f"1, got {taken:g}: lower weight_decay"
            )
        return self


class TrainingConfig(Section):
    """Device, precision and checkpoints."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: a GPU if there is one")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="precision of the forward pass; bf16 requires the loop or the layerwise engine"
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="steps between two checkpoints; default: a fifth of the run, and at most 50"
    )
    keep: int = Field(2, ge=1, description="how many checkpoints are kept, the newest")

    def checkpointed(self, steps: int) -> int:
        """Steps between two checkpoints of a run of so many."""
        return self.checkpoint_every or max(1, min(50, steps // 5))


class ProgressConfig(Section):
    """Noisy training metrics that `diagnostics = 'private'` releases; they are accounted for."""

    share: float = Field(
        0.01, ge=1e-6, lt=1, description="fraction of each step's privacy cost (1 / sigma^2) spent on these metrics"
    )
    phase: int | None = Field(
        None, ge=1, description="steps whose figures are averaged; default: as many as the noise requires"
    )
    quantile: float = Field(0.5, ge=0.01, le=0.99, description="quantile of the groups' gradient norms that is followed")
    loss_range: float | None = Field(
        None, ge=1e-6, le=1e6, description="per-record losses are clipped to this value; default: twice the chance-level loss"
    )


Task = Literal["retrieval", "zero_shot", "knn", "linear"]


class EvaluationConfig(Section):
    """Measurements of the untrained and the trained model on held-out records."""

    tasks: Items[Task] = Field((), description="what is measured; empty: all that is possible")
    match: Literal["record", "unit"] = Field(
        "record", description="retrieval: a hit is the query's own record, or any record of its unit"
    )
    templates: Items[str] = Field(("a photo of a {}.",), min_length=1, description="zero-shot prompts, {} is the class")
    split: Literal["validation", "test", "none"] = Field("test", description="'none' trains without measuring")
    every: int = Field(0, ge=0, description="steps between evaluations during training; 0: at the end only")
    records: int = Field(0, ge=0, description="held-out records used; 0: all")
    bank: int = Field(0, ge=0, description="labelled training records for k-NN and linear probe; 0: all")
