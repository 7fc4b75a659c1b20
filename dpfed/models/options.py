"""Sections of a configuration that choose a model and its trained parts. This module does not import torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpfed import discovery
from dpfed.errors import nearest
from dpfed.schema.conditions import When, only
from dpfed.schema.named import Arguments, is_name
from dpfed.schema.section import Items, Section

SIZE = 32  # side of the images, pixels, if neither the user nor the architecture sets one
PROCEDURAL = "procedural"  # value of model.start: weights that were trained on procedural images alone
_ENCODERS = tuple(discovery.shipped("encoders"))
_TIMM, _TORCHVISION = "timm/", "torchvision/"
_OWN_TEXT = "transformer"
SENTENCES = "sentence-transformers/"  # prefix of model.text: a pretrained tower by its name on the hub

# Conditions of keys that only some kinds of models read.
_CLIP = only("model.kind", "open_clip")
_OURS = only("model.kind", "image", "image-text", why="an open_clip architecture has its own; ")
_TEXT = only("model.kind", "image-text")
_HEAD = only("model.kind", "image")
# Conditions of keys that only some parts of a model read.
_OUR_ENCODER = When(
    "model.image",
    lambda model: model.timm is None and not model.is_own,
    "an encoder that is not dpfed's has its own; set model.image = 'cnn' or 'resnet18'",
)
_OWN = When("model.image", lambda model: model.is_own, "set model.image = 'package.module:function'")
_RESNET = only("model.image", "resnet18", "resnet34", "resnet50")
_BATCH_NORM = only("model.normalisation", "batch")
_OUR_TEXT = When(
    "model.text",
    lambda model: model.pretrained_text is None,
    f"a pretrained text tower has its own; set model.text = '{_OWN_TEXT}'",
)
_EXTERNAL = When(
    "model.kind model.image", lambda model: model.external, "set model.kind = 'open_clip' or model.image = 'timm/NAME'"
)
_FOREIGN = When(
    "model.kind model.image model.text",
    lambda model: model.external or model.pretrained_text is not None,
    "a run writes the hash of a tower of open_clip, timm, torchvision or Hugging Face into this key; set such a tower",
)
_NO_START = When("model.start", lambda model: model.start is None, "model.start already names weights; give no model.start")
_START = When("model.start", lambda model: model.start is not None, "set model.start")


class ModelConfig(Section):
    """Section ``[model]``: the model that is trained, with one tower or two."""

    kind: Literal["image", "image-text", "open_clip"] = Field(
        "image",
        description="'image': an image tower with a projection head; 'image-text': an image tower and a text tower; "
        "'open_clip': the two towers of an open_clip model",
    )
    architecture: Annotated[str | None, _CLIP] = Field(
        None, description="a name that open_clip knows, a JSON file, or 'local-dir:DIR'"
    )
    weights: Annotated[str | None, _EXTERNAL, _NO_START] = Field(
        None,
        description="a file, a pretrained tag, or (timm) a folder; none: random weights, or those in the folder of "
        "architecture = 'local-dir:DIR'",
    )
    digest: Annotated[str | None, _FOREIGN] = Field(
        None,
        description="the hash of the open_clip, timm or torchvision architecture, and of the pretrained text tower; a run "
        "writes this key itself",
    )
    start: str | None = Field(
        None,
        description="starting weights: 'procedural' (`dpfed start`), or the path of a run, of its folder model/, or of a file; "
        "none: those of model.weights, or random",
    )
    start_digest: Annotated[str | None, _START] = Field(
        None, description="the hash of the starting weights; a run writes this key itself"
    )
    tokenizer: Annotated[Literal["own", "words"], _CLIP] = Field(
        "own", description="own: the model's; words: hashed words, for a model with random weights"
    )
    image: Annotated[str, _OURS] = Field(
        "cnn",
        description="'cnn', 'resnet18', 'resnet34', 'resnet50', or 'timm/NAME' or 'torchvision/NAME', an encoder that does not "
        "mix records; or 'package.module:function', which returns an encoder, or the name by which a package announces it",
    )
    options: Annotated[Arguments, _OURS, _OWN] = Field({}, description="arguments of the function that model.image names")
    stem: Annotated[Literal["cifar", "imagenet"], _OURS, _RESNET] = Field(
        "cifar", description="first layer of a ResNet: 'cifar': 3x3; 'imagenet': 7x7 with max-pooling"
    )
    width: Annotated[int, _OURS, _OUR_ENCODER] = Field(
        32, ge=4, le=4096, description="number of channels of the first stage; a standard ResNet has 64"
    )
    features: Annotated[Literal["last", "pyramid"], _OURS, _OUR_ENCODER] = Field(
        "last",
        description="'last': the last stage's mean; 'pyramid': every stage's means over quadrants (a larger head, no other "
        "weights)",
    )
    normalisation: Annotated[Literal["group", "layer", "batch"], _OURS, _OUR_ENCODER] = Field(
        "group",
        description="layer after each convolution: 'group' (GroupNorm), 'layer' (LayerNorm), or 'batch' (BatchNorm over one "
        "group and public anchors, docs/methods.md)",
    )
    anchors: Annotated[str | None, _OURS, _OUR_ENCODER, _BATCH_NORM] = Field(
        None,
        description="a public record store whose images join every group (normalisation = 'batch'); none: generated shapes",
    )
    anchor_count: Annotated[int, _OURS, _OUR_ENCODER, _BATCH_NORM] = Field(
        32, ge=2, le=4096, description="M: number of public images in every group (normalisation = 'batch')"
    )
    weight_standardisation: Annotated[bool, _OURS, _OUR_ENCODER] = Field(
        False, description="convolutions use weights of mean 0 and variance 1"
    )
    text: Annotated[str, _OURS, _TEXT] = Field(
        _OWN_TEXT,
        description="text encoder (kind = 'image-text'): 'transformer' (small, trained), 'sentence-transformers/NAME', or a "
        "folder of the Hugging Face format (pretrained, frozen, with a linear head)",
    )
    text_width: Annotated[int, _OURS, _TEXT, _OUR_TEXT] = Field(
        64, ge=8, le=8192, description="number of dimensions of a token's vector in the text encoder; a multiple of text_heads"
    )
    text_layers: Annotated[int, _OURS, _TEXT, _OUR_TEXT] = Field(
        2, ge=1, le=256, description="number of transformer blocks of the text encoder"
    )
    text_heads: Annotated[int, _OURS, _TEXT, _OUR_TEXT] = Field(
        2, ge=1, le=256, description="number of attention heads of each block"
    )
    vocabulary: Annotated[int, _OURS, _TEXT, _OUR_TEXT] = Field(
        1024, ge=64, le=1_000_000, description="number of hash buckets of the word tokenizer"
    )
    context: Annotated[int, _OURS, _TEXT, _OUR_TEXT] = Field(
        24, ge=4, le=4096, description="number of words that the model reads of a caption"
    )
    embedding: Annotated[int, _OURS] = Field(
        64, ge=2, le=65_536, description="number of dimensions of the space in which views are contrasted"
    )
    head_hidden: Annotated[int, _OURS, _HEAD] = Field(
        128, ge=2, le=65_536, description="number of hidden units of the projection head (kind = 'image')"
    )

    @field_validator("normalisation")
    @classmethod
    def _there(cls, normalisation: str) -> str:
        if normalisation == "batch" and not discovery.has("baselines"):
            raise ValueError("expected one of group, layer: BatchNorm is in dpfed.baselines, which is not installed")
        return normalisation

    @property
    def reads_text(self) -> bool:
        """Whether the model has a text tower."""
        return self.kind != "image"

    @property
    def timm(self) -> str | None:
        """Name of timm's image encoder, or of torchvision's with its prefix; ``None``: the encoder is of neither library."""
        ours = self.kind != "open_clip" and self.image.startswith((_TIMM, _TORCHVISION))
        return self.image.removeprefix(_TIMM) if ours else None

    @property
    def is_own(self) -> bool:
        """Whether the image encoder is the user's own."""
        return self.kind != "open_clip" and is_name(self.image)

    @property
    def pretrained_text(self) -> str | None:
        """Name or folder of the pretrained text tower beside an image encoder; ``None``: the model has none."""
        return self.text if self.kind == "image-text" and self.text != _OWN_TEXT else None

    @property
    def external(self) -> bool:
        """Whether the image tower is one of open_clip's, timm's or torchvision's."""
        return self.kind == "open_clip" or self.timm is not None

    @field_validator("image")
    @classmethod
    def _known(cls, image: str) -> str:
        if image not in _ENCODERS and (foreign := discovery.announced("encoders").get(image)) is not None:
            return foreign.place  # as if the user had given its full name
        if image not in _ENCODERS and not is_name(image) and not image.startswith((_TIMM, _TORCHVISION)):
            hint = f"did you mean '{_TIMM}{image}'?" if "_" in image else nearest(image, _ENCODERS)
            raise ValueError(
                f"expected one of {', '.join(_ENCODERS)}, timm/NAME such as timm/vit_tiny_patch16_224, torchvision/NAME, or "
                f"package.module:function; {hint}"
            )
        return image

    @model_validator(mode="after")
    def _named(self) -> ModelConfig:
        if self.kind == "open_clip" and self.architecture is None:
            raise ValueError("kind = 'open_clip' needs model.architecture, such as 'ViT-B-32'")
        return self


Layer = Literal["q", "k", "v", "out", "mlp"]
Training = Literal["full", "last", "bias", "lora", "frozen"]


class AdaptationConfig(Section):
    """Section ``[adaptation]``: trained parts of an open_clip model, or of an encoder of timm or torchvision.

    Frozen parts cost no gradient, noise or traffic.
    """

    image: Literal["auto", "full", "last", "bias", "lora", "frozen"] = Field(
        "auto",
        description="image tower: all weights, its last block, biases and scales, low-rank adapters, or nothing (LiT); "
        "auto: lora (open_clip), full (timm, torchvision)",
    )
    text: Literal["full", "lora", "frozen"] = Field("lora", description="text tower: all weights, adapters, or nothing")
    rank: int = Field(16, ge=1, le=4096, description="r: rank of the adapters B A (Hu et al. 2022)")
    alpha: float = Field(16.0, ge=1e-3, le=1e6, description="the adapters' output is multiplied by alpha / rank")
    image_layers: Items[Layer] = Field(("q", "v"), min_length=1, description="layers of the image tower that get adapters")
    text_layers: Annotated[Items[Layer], only("adaptation.text", "lora")] = Field(
        ("q", "v"), min_length=1, description="layers of the text tower that get adapters"
    )

    def of_images(self, kind: str) -> Training:
        """Returns the trained part of the image tower for a kind of model, with ``auto`` resolved."""
        return self.image if self.image != "auto" else "lora" if kind == "open_clip" else "full"

    @field_validator("image_layers", "text_layers")
    @classmethod
    def _once(cls, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        if len(set(layers)) < len(layers):
            raise ValueError("each layer may be listed only once")
        return layers
