"""Encoders as steps of scikit-learn's pipelines, on pictures in all forms."""

import numpy as np
import pytest

from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.features.pictures import PictureFeatures
from dpfed.models.inputs import square_images


class Pixels:
    """An encoder whose features are the pixels of a picture at a small size."""

    def features(self, images):
        return square_images(images, 4, Preprocessing()).flatten(1)


PICTURES = np.random.default_rng(0).integers(0, 256, (7, 9, 8, 3), np.uint8)


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_one_picture_is_never_cut_into_several(batch):
    step = PictureFeatures(Pixels(), batch=batch)
    together = step.transform(PICTURES)
    assert np.array_equal(step.transform(list(PICTURES)), together)
    for picture, wanted in zip(PICTURES, together, strict=True):
        assert np.array_equal(step.transform(picture), wanted[None])
        assert np.array_equal(step.transform([picture]), wanted[None])


@pytest.mark.parametrize("wrong", [[], None, 7, PICTURES / 255.0, PICTURES[..., 0]])
def test_what_is_no_pictures_is_refused(wrong):
    with pytest.raises(UserError):
        PictureFeatures(Pixels()).transform(wrong)
