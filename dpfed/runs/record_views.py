"""Makes the views through which a run's model reads its records."""

from __future__ import annotations

from dpfed.building.images import image_size
from dpfed.config import Config
from dpfed.data.views.images import ImageViews
from dpfed.data.views.record_views import RecordViews, Tokenizer
from dpfed.data.views.texts import TextViews
from dpfed.models.images import preprocessing_of
from dpfed.runs.dummy_batch import views_per_image


def record_views(config: Config, tokenizer: Tokenizer | None) -> RecordViews:
    """Makes the views of records that the model reads.

    Args:
        config: Configuration with its defaults resolved.
        tokenizer: Tokenizer of a model that reads text, else ``None``.
    """
    preprocessing = preprocessing_of(config.model, config.data.resize)
    images, texts = ImageViews(config.views, preprocessing), TextViews(config.text_views)
    return RecordViews(images, image_size(config), views_per_image(config), preprocessing, tokenizer, texts)
