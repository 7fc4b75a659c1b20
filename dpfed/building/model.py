"""Makes the model of a configuration, and describes it for the model's folder and for the user."""

from __future__ import annotations

import torch
from torch import nn

from dpfed.building.images import image_shape, image_size
from dpfed.config import AdaptationConfig, Config
from dpfed.models.building import Model, build_model, tokenizer_for
from dpfed.models.centres import add_centres
from dpfed.models.folder import ModelFacts
from dpfed.models.images import preprocessing_of
from dpfed.models.own import finish_model
from dpfed.models.starting import StartingWeights
from dpfed.models.summary import Trained, trained_part
from dpfed.privacy.method import method_named


def model_of(
    config: Config, load_weights: bool = True, start: StartingWeights | None = None, adaptation: AdaptationConfig | None = None
) -> Model:
    """Makes the model that a run of a configuration trains, with centres of its embeddings if the configuration has any.

    Args:
        config: Configuration with its defaults resolved.
        load_weights: Whether to load pretrained weights; see `build_model`.
        start: Starting weights; see `build_model`.
        adaptation: Trained parts of the towers; default: the configuration's.

    Raises:
        UserError: See `build_model`.
    """
    adaptation, size = adaptation or config.adaptation, image_size(config)
    model = build_model(config.model, config.objective, adaptation, size, load_weights, start)
    if config.model.is_own and not next(model.parameters()).is_meta:
        tokenizer = tokenizer_for(config.model)
        finish_model(model, torch.zeros(2, *image_shape(config)), tokenizer(["a", "b"]) if tokenizer else None)
    if has_centres(config):
        add_centres(model, config.model)
    return model


def has_centres(config: Config) -> bool:
    """Returns whether the model has a centre for private records, and another for public records (`dpfed.models.centres`)."""
    return method_named(config.bounding.method).public_records and config.public.centring > 0


def facts_of(config: Config) -> ModelFacts:
    """Returns the part of a configuration that a model's folder keeps. The defaults must be resolved."""
    preprocessing = preprocessing_of(config.model, config.data.resize)
    return ModelFacts(config.model, config.objective, image_size(config), preprocessing, image_shape(config))


def trained_of(model: nn.Module, config: Config) -> Trained:
    """Counts and describes the trained part of a model, in the words of its configuration."""
    closed_form = method_named(config.bounding.method).closed_form
    return trained_part(model, config.model, config.adaptation, closed_form)
