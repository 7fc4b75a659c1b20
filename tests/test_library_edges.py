"""What people hand to the library by mistake: it works, or a sentence says what is expected."""

import numpy as np
import pytest
import torch
from PIL import Image
from test_library import Mine
from torch import nn

import dpfed
from dpfed.data.items.item import Parts
from dpfed.data.options import ViewsConfig
from dpfed.data.views.images import ImageViews
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.data.views.record_views import RecordViews
from dpfed.encoder import Encoder
from dpfed.errors import UserError
from dpfed.features.training_views import TrainingViews
from dpfed.models.own import SimCLR
from dpfed.models.validation import check_independence, random_group
from dpfed.own_encoder import OwnEncoder
from dpfed.privacy.randomness import Randomness
from dpfed.training.learner import Learner

VIEWS = TrainingViews(RecordViews(ImageViews(ViewsConfig()), size=16, count=2))
PLAN = {"records": 600, "batch": 60, "steps": 5, "epsilon": 8.0, "group_size": 4, "clip_norm": 1.0}


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    config = dpfed.parse_config({"model": {"kind": "image-text", "width": 8, "text_width": 16, "embedding": 16}})
    model = dpfed.build_model(config.model, config.objective, size=16).eval()
    return Encoder(model, 16, dpfed.models.building.tokenizer_for(config.model))


@pytest.fixture
def picture():
    """40 x 24 pixels."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8))


def channels_first(array):
    return torch.from_numpy(array).movedim(-1, -3)


@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_a_picture_has_the_same_features_in_every_form(encoder, picture, resize, interpolation):
    configured = Encoder(encoder.model, 16, None, Preprocessing(resize=resize, interpolation=interpolation))
    array = np.asarray(picture)
    expected = configured.features([picture])
    assert expected.shape[0] == 1
    forms = [picture, array, channels_first(array), [array], (channels_first(array),), (one for one in [picture])]
    for form in forms:
        assert torch.equal(configured.features(form), expected)
    pair = np.stack([array, array[::-1]])
    both = configured.features([picture, picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)])
    for form in (pair, channels_first(pair), list(pair), [picture, channels_first(pair[1])]):
        assert torch.allclose(configured.features(form), both, atol=1e-6)
    assert torch.equal(configured.embed_images(channels_first(array)), configured.embed_images(picture))


@pytest.mark.parametrize(
    "images, expected",
    [
        ([], "there is no image"),
        (np.zeros((0, 16, 16, 3), np.uint8), "there is no image"),
        (torch.zeros(0, 3, 16, 16, dtype=torch.uint8), "there is no image"),
        (None, "None is not an image"),
        (7, "an int is not an image"),
        ("cat.png", "open files with PIL"),
        (b"\x89PNG", "open files with PIL"),
        (["cat.png"], "image 0 cannot be used: it is a str"),
        ({"image": 1}, "a dict is not an image"),
        (torch.rand(2, 3, 16, 16), "image 0 .* of torch.float32, and floats do not say"),
        (np.random.rand(16, 16, 3), "of float64, and floats do not say"),
        (np.zeros((16, 16, 3), np.int64), "of int64; expected"),
        (torch.zeros(16, 16, 3, dtype=torch.uint8), r"a tensor \(16, 16, 3\)"),
        (torch.zeros(2, 1, 16, 16, dtype=torch.uint8), r"a tensor \(1, 16, 16\)"),
        (np.zeros((2, 16, 16), np.uint8), r"an array \(2, 16, 16\)"),
        (np.zeros((2, 3, 16, 16), np.uint8), r"an array \(3, 16, 16\)"),
        (np.zeros((1, 2, 3, 4, 5), np.uint8), r"shape \(1, 2, 3, 4, 5\) is not an image"),
        (np.zeros(5, np.uint8), r"shape \(5,\) is not an image"),
        (np.zeros((0, 16, 3), np.uint8), r"an array \(0, 16, 3\)"),
        (Image.new("F", (16, 16)), "image 0 cannot be used: floating-point"),
        ([Image.new("RGB", (16, 16)), None], "image 1 cannot be used: it is None"),
    ],
)
def test_what_is_no_image_is_refused_in_a_sentence(encoder, images, expected):
    for method in (encoder.features, encoder.embed_images):
        with pytest.raises(UserError, match=expected):
            method(images)


def test_one_caption_and_many(encoder):
    one = encoder.embed_text("a red square")
    assert one.shape == (1, 16)
    for form in (["a red square"], ("a red square",), iter(["a red square"])):
        assert torch.equal(encoder.embed_text(form), one)
    assert encoder.embed_text(["", "word " * 200_000]).shape == (2, 16)


@pytest.mark.parametrize(
    "captions, expected",
    [
        ([], "there is no caption"),
        (None, "expected a caption or a list of captions, got None"),
        (3, "got an int"),
        (b"text", "got a bytes"),
        (["a", 3], "caption 1 is an int"),
        ([["a", "b"]], "caption 0 is a list"),
        (["\ud800"], "text-surrogate"),
    ],
)
def test_what_is_no_caption_is_refused_in_a_sentence(encoder, captions, expected):
    with pytest.raises(UserError, match=expected):
        encoder.embed_text(captions)


class _Reads(SimCLR):
    def embed_text(self, tokens):
        return tokens


@pytest.mark.parametrize("captions", [[], None, 3, ["a", 3]])
def test_an_own_text_tower_refuses_what_is_no_caption(captions):
    encoder = OwnEncoder(_Reads(nn.Flatten()), nn.Identity(), tokenizer=lambda texts: torch.zeros(len(texts), 1))
    with pytest.raises(UserError, match="caption"):
        encoder.embed_text(captions)


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        (lambda image: image if image.sum() else 1 / 0, "image 1 .*ZeroDivisionError: division by zero.*encoder-image"),
        (lambda image: image[:, : 2 if image.sum() else 1], "different shapes, .*encoder-shapes"),
    ],
    ids=["it fails", "its shapes differ"],
)
def test_a_plain_transform_that_fails_is_reported_in_a_sentence(plain, said):
    images = [torch.full((3, 2, 2), 0.5), torch.zeros(3, 2, 2)]
    with pytest.raises(UserError, match=said):
        OwnEncoder(SimCLR(nn.Flatten()), plain).features(images)


@pytest.mark.parametrize("location", [None, "picture", 1])
def test_an_encoder_of_ones_own_takes_an_image_without_its_item(location):
    image = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    item = {None: image, "picture": {"picture": image}, 1: ("a caption", image)}[location]
    plain = lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1).float()  # noqa: E731
    encoder = OwnEncoder(SimCLR(nn.Flatten()), plain, parts=Parts(location))
    for given in (image, [image], np.asarray(image)):
        assert torch.equal(encoder.features(given), encoder.features(item))


def test_an_item_of_a_data_set_is_read_as_in_training():
    class Stacked(torch.utils.data.Dataset):
        """A picture of one channel above its mask."""

        def __len__(self):
            return 2

        def __getitem__(self, place):
            return np.stack([np.full((2, 2), place, np.uint8), np.full((2, 2), 9, np.uint8)])

    encoder = OwnEncoder(SimCLR(nn.Flatten()), lambda image: torch.from_numpy(np.array(image))[None].float(), parts=Parts(0))
    assert encoder.features(Stacked()).tolist() == [[0.0] * 4, [1.0] * 4]


def test_image_models_have_no_captions_foreign_ones_no_features(encoder):
    with pytest.raises(UserError, match="model-folder-no-text"):
        Encoder(encoder.model, 16, None).embed_text("a")
    with pytest.raises(UserError, match="Linear has no method features"):
        Encoder(nn.Linear(2, 2), 16, None).features(Image.new("RGB", (16, 16)))


@pytest.mark.parametrize(
    "config, expected",
    [
        (None, "expected a configuration, as in.*pretrain-what"),
        ({"privacy": {"epsilon": 8}}, "got dict.*run-config-type"),
        (dpfed.PrivacyPlan, "got type.*run-config-type"),
        ("no-such-config", "no-such-config"),
    ],
)
def test_pretrain_says_what_a_configuration_is(config, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        dpfed.pretrain(config, tmp_path / "run")


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"config": "quickstart", "callbacks": "tensorboard"}, "trackers.*callbacks-kind"),
        ({"config": "quickstart", "callbacks": [dpfed.Callback]}, "the class Callback.*callbacks-kind"),
        ({"config": "quickstart", "callbacks": 7}, "callbacks-kind"),
        ({"data": "images", "epsilon": 8, "overrides": "privacy.batch=64"}, "config-overrides-text"),
    ],
)
def test_what_pretrain_cannot_use_is_refused_before_the_folder_is_made(given, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        dpfed.pretrain(**given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resume_refuses_what_is_no_callback_without_its_contents(tmp_path):
    with pytest.raises(UserError, match="a list of 1: .*callbacks-kind") as refused:
        dpfed.resume(tmp_path / "run", callbacks=[["a private caption"]])
    assert "caption" not in str(refused.value)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"records": "600"}, "records must be a whole number, got '600'"),
        ({"epsilon": "8"}, "epsilon must be a number, got '8'"),
        ({"epsilon": None}, "give exactly one of epsilon"),
        ({"epsilon": True}, "epsilon must be a number, got True"),
        ({"clipnorm": 1.0}, "no 'clipnorm'; did you mean 'clip_norm'"),
        ({"noise_multiplier": 1.0}, "give exactly one of epsilon and noise_multiplier"),
    ],
)
def test_a_plan_says_what_its_numbers_are(changes, expected):
    with pytest.raises(UserError, match=expected):
        dpfed.PrivacyPlan.calibrate(**PLAN | changes)


GOOD = {"id": "a", "image": Image.new("RGB", (8, 8)), "captions": ("a cat",), "labels": {"kind": 0}}


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"captions": "a cat"}, "record-captions"),
        ({"captions": (1, 2)}, "record-captions"),
        ({"id": 7}, "got 7.*record-id-text"),
        ({"labels": {"kind": "0"}}, "its label 'kind' must be a whole number"),
        ({"labels": {"kind": True}}, "its label 'kind' must be a whole number"),
        ({"labels": [0]}, "record-labels"),
        ({"image": "cat.png"}, "got str.*record-image"),
        ({"image": torch.zeros(3, 8, 8)}, "got Tensor"),
        ({"image": None}, "got NoneType"),
    ],
)
def test_a_record_says_what_it_is_made_of(tmp_path, changes, expected):
    with (
        pytest.raises(UserError, match=expected),
        dpfed.StoreWriter(tmp_path / "store", name="x", kind="image-text", label_names={"kind": ["cat"]}) as writer,
    ):
        writer.add(dpfed.RecordInput(**GOOD | changes))
    assert not any(tmp_path.iterdir())


class Odd(Mine):
    """Gives something else than embeddings."""

    def __init__(self, made, **attributes):
        super().__init__()
        self.made = made
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, views):
        return self.made(super().forward(views)["image"])


ODD = {
    "a tensor": (lambda z: z, r"forward got the views .* and gave a tensor \(\d+, 2, 8\) of float32; expected a dictionary"),
    "a tuple": (lambda z: (z, z), "gave a tuple of 2; expected a dictionary"),
    "nothing": (lambda z: None, "gave None; expected"),
    "another name": (lambda z: {"images": z}, r"gave no 'image', but \['images'\]"),
    "whole numbers": (lambda z: {"image": z.long()}, "of int64 as 'image'"),
    "no tensor": (lambda z: {"image": z.tolist()}, "gave a list of"),
    "one row per view": (lambda z: {"image": z.flatten(0, 1)}, "expected a dictionary of floating-point tensors {'image'"),
    "one record less": (lambda z: {"image": z[1:]}, "an embedding for each view"),
    "numbers": (lambda z: {"image": z.sum()}, "an embedding for each view"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_model_of_ones_own_is_told_the_contract(name, shapes, tmp_path):
    made, expected = ODD[name]
    with pytest.raises(UserError, match=expected):
        check_independence(Odd(made), random_group(16))
    plan = dpfed.PrivacyPlan.calibrate(**PLAN)
    learner = Learner(plan, Odd(made), shapes, VIEWS)
    with pytest.raises(UserError, match=expected):
        learner.worker(Randomness.from_seed(0)).bounded_sum(0)


@pytest.mark.parametrize(
    "temperature, expected",
    [
        (None, "needs an attribute 'temperature', .* but has none"),
        (0.1, "has a float"),
        (torch.ones(1), r"has a tensor \(1,\)"),
    ],
)
def test_a_model_without_a_temperature_is_refused_undrawn(temperature, expected, shapes):
    model = Odd(lambda z: {"image": z}, temperature=temperature)
    learner = Learner(dpfed.PrivacyPlan.calibrate(**PLAN), model, shapes, VIEWS)
    with pytest.raises(UserError, match=expected):
        learner.worker(Randomness.from_seed(0))
