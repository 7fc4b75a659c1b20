"""Normalisation: statistics against torch's own BatchNorm, what may be seen of neighbours, saved models, refusals."""

import pytest
import torch
from torch import nn

from dpfed.baselines.anchored_batch_norm import AnchoredBatchNorm, AnchoredEncoder, anchor_images
from dpfed.building.model import facts_of
from dpfed.config import Config, ModelConfig, ObjectiveConfig, ViewsConfig, parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.data.views.images import ImageViews
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.encoders import SmallCNN
from dpfed.models.folder import load_encoder, save_encoder
from dpfed.models.norm import mixes_records
from dpfed.models.validation import check_independence, random_group, validate
from dpfed.runs.resolution import resolve_defaults

ANCHORS = 9  # divisible by the records of `random_group`, so that rows of anchors could be taken for records
BATCH = ModelConfig(width=4, embedding=8, head_hidden=8, normalisation="batch", anchor_count=ANCHORS)


def encoder_and_images() -> tuple[AnchoredEncoder, torch.Tensor]:
    encoder = AnchoredEncoder(SmallCNN(4, AnchoredBatchNorm), torch.randint(0, 256, (ANCHORS, 3, 16, 16), dtype=torch.uint8))
    for layer in encoder.modules():
        if isinstance(layer, AnchoredBatchNorm):
            nn.init.uniform_(layer.weight, 0.5, 2.0)
            nn.init.uniform_(layer.bias)
    return encoder, 2 * torch.randn(6, 3, 16, 16) + 0.5


def torchs_own(encoder: AnchoredEncoder) -> tuple[SmallCNN, torch.Tensor]:
    """The same network of torch's BatchNorm without running statistics, and the anchors as `ImageViews` would show them."""
    twin = SmallCNN(4, lambda channels: nn.BatchNorm2d(channels, track_running_stats=False))
    twin.load_state_dict(encoder.encoder.state_dict())
    return twin, ImageViews(ViewsConfig()).plain(encoder.anchors)


def test_a_group_is_normalised_together_with_the_anchors():
    encoder, images = encoder_and_images()
    twin, anchors = torchs_own(encoder)
    expected = twin(torch.cat([images, anchors]))[:6]
    assert torch.allclose(encoder(images), expected, atol=1e-5)
    mine = torch.autograd.grad(encoder(images).square().sum(), list(encoder.parameters()))
    theirs = torch.autograd.grad(expected.square().sum(), list(twin.parameters()))
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-3) for one, other in zip(mine, theirs, strict=True))


def test_at_inference_statistics_are_the_anchors():
    encoder, images = encoder_and_images()
    twin, anchors = torchs_own(encoder)

    def keep(layer: nn.BatchNorm2d, inputs: tuple[torch.Tensor]) -> None:
        layer.running_var, layer.running_mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)

    hooks = [layer.register_forward_pre_hook(keep) for layer in twin.modules() if isinstance(layer, nn.BatchNorm2d)]
    with torch.no_grad():
        twin(anchors)
        for hook in hooks:
            hook.remove()
        assert torch.allclose(encoder.eval()(images), twin.eval()(images), atol=1e-5)


def test_inference_of_an_image_does_not_depend_on_its_neighbours():
    encoder, images = encoder_and_images()
    others = torch.cat([images[:1], 50 + 9 * torch.randn(5, 3, 16, 16)])
    with torch.no_grad():
        assert not torch.allclose(encoder(images)[0], encoder(others)[0], atol=1e-2)  # they share statistics in training
        encoder.eval()
        assert torch.equal(encoder(images)[0], encoder(others)[0])
        assert torch.allclose(encoder(images)[0], encoder(images[:1])[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["image", "image-text"])
@pytest.mark.parametrize("image", ["cnn", "resnet18"])
@pytest.mark.parametrize("changes", [{"normalisation": "layer", "weight_standardisation": True}, {"normalisation": "batch"}])
def test_a_saved_model_gives_the_same_features(tmp_path, kind, image, changes):
    model = {"kind": kind, "image": image, "width": 4, **({"text_width": 16} if kind == "image-text" else {}), **changes}
    config = parse_config({"model": model, "data": {"size": 16}})
    model = build_model(config.model, config.objective, size=16)
    validate(model)
    check_independence(model, random_group(16, (1024, 24) if kind == "image-text" else None))
    save_encoder(tmp_path, model, facts_of(config))
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(load_encoder(tmp_path).features(images), model.eval().features(images))


def test_a_model_folder_keeps_the_anchors_but_not_their_path(tmp_path):
    write_shapes(tmp_path / "public", train=20, validation=0, test=0)
    config = resolve_defaults(Config(model=BATCH.model_copy(update={"anchors": str(tmp_path / "public")})))
    model = build_model(config.model, config.objective)
    save_encoder(tmp_path / "model", model, facts_of(config))
    assert "public" not in (tmp_path / "model" / "model.json").read_text()
    assert torch.equal(load_encoder(tmp_path / "model").encoder.anchors, model.encoder.anchors)


def test_anchors_are_public_records_and_the_same_every_time(tmp_path):
    write_shapes(tmp_path / "public", train=20, validation=0, test=5)
    store = RecordStore.open(tmp_path / "public")
    anchors = anchor_images(str(store.path), 8, 16)
    train = store.images(store.split("train"), 16)
    assert all((train == anchor).flatten(1).all(1).sum() == 1 for anchor in anchors)
    assert not torch.equal(anchors, train[:8])  # not the first ones, which may all be of one class
    assert torch.equal(anchors[:4], anchor_images(str(store.path), 4, 16))
    with pytest.raises(UserError, match=r"20 training records.* 21.*\[norm-few-anchors"):
        anchor_images(str(store.path), 21, 16)


def test_records_that_are_not_public_are_no_anchors(tmp_path):
    with StoreWriter(tmp_path / "private", name="mine", kind="image", size=16) as writer:
        for number in range(4):
            writer.add(RecordInput(str(number), torch.full((16, 16, 3), number, dtype=torch.uint8).numpy()))
    with pytest.raises(UserError, match="norm-anchors-private"):
        anchor_images(str(tmp_path / "private"), 2, 16)


def test_generated_anchors_are_no_records_of_the_data_set(shapes):
    anchors = anchor_images(None, 8, 32)
    assert torch.equal(anchors, anchor_images(None, 8, 32))
    records = shapes.images(shapes.split("train"), 32)
    assert not any((records == anchor).flatten(1).all(1).any() for anchor in anchors)


def test_anchors_are_for_batch_normalisation_alone():
    with pytest.raises(UserError, match="'model.anchor_count' has no effect with model.normalisation = 'group'"):
        parse_config({"model": {"anchor_count": 8}})


def test_only_the_anchored_layer_may_mix():
    model = build_model(BATCH, ObjectiveConfig(), size=16)
    validate(model)
    check_independence(model, random_group(16))
    assert mixes_records(model) and not mixes_records(build_model(ModelConfig(), ObjectiveConfig()))
    assert all(module.training for module in model.modules())
    model.encoder.encoder.stages[1] = AnchoredBatchNorm(4)
    with pytest.raises(UserError, match=r"AnchoredBatchNorm at 'encoder\.encoder\.stages\.1' .*\[norm-no-anchors"):
        validate(model)
    validate(AnchoredEncoder(model.encoder.encoder, torch.zeros(2, 3, 16, 16, dtype=torch.uint8)))  # as the message says
    validate(AnchoredEncoder(nn.Sequential(AnchoredBatchNorm(4)), torch.zeros(2, 3, 16, 16, dtype=torch.uint8)))
    model.encoder.encoder.stages[1] = nn.BatchNorm2d(4)
    with pytest.raises(UserError, match=r"BatchNorm2d at .*\[model-batch-norm"):
        validate(model)


def test_what_else_mixes_beside_anchored_layers_is_found():
    model = build_model(BATCH, ObjectiveConfig(), size=16)
    model.encoder.encoder.stages[2] = nn.BatchNorm2d(4, track_running_stats=False)
    with pytest.raises(UserError, match=r"AnchoredEncoder at .encoder. .*\[model-mixes"):
        check_independence(model, random_group(16))
