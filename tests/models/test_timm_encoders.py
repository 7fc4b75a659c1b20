"""timm's encoders: built at the run's size, trained as asked, saved as timm reads them, or refused in a sentence."""

import importlib.util
import json
import math

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from dpfed.artifacts.model_card import loading_code
from dpfed.building.model import facts_of, trained_of
from dpfed.config import AdaptationConfig, Config, DataConfig, ModelConfig, ObjectiveConfig
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.encoder import load
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.description import describe
from dpfed.models.folder import load_encoder, save_encoder
from dpfed.models.images import preprocessing_of
from dpfed.models.lora import merged_state
from dpfed.models.starting import find_start
from dpfed.models.timm_blueprints import timm_blueprint
from dpfed.models.validation import check_independence, random_group, validate
from dpfed.runs.resolution import resolve_defaults

ALL = ("q", "k", "v", "out", "mlp")
CASES = {
    "ViT": {"image": "test_vit"},
    "ViT at 64 px, adapted": {"image": "test_vit", "size": 64, "adaptation": {"image": "lora", "image_layers": ALL}},
    "ConvNeXt": {"image": "test_convnext"},
    "ConvNeXt, adapted MLP": {"image": "test_convnext", "adaptation": {"image": "lora", "image_layers": ("mlp",)}},
    "GroupNorm": {"image": "test_efficientnet_gn"},
    "frozen": {"image": "test_vit", "adaptation": {"image": "frozen"}},
    "two towers": {"image": "test_vit", "kind": "image-text", "adaptation": {"image": "lora"}},
}


def config_of(image, size=32, kind="image", loss="infonce", adaptation=None, resize="model", **model):
    config = Config.unchecked(
        data=DataConfig(size=size, resize=resize),
        model=ModelConfig(kind=kind, image=f"timm/{image}", embedding=16, head_hidden=16, text_width=16, **model),
        objective=ObjectiveConfig(name=loss),
        adaptation=AdaptationConfig(rank=4, **(adaptation or {})),
    )
    return resolve_defaults(config)


def model_of(config, stir=True):
    model = build_model(config.model, config.objective, config.adaptation, config.data.size)
    for parameter in model.parameters():
        if stir and parameter.requires_grad and parameter.dim():
            torch.nn.init.normal_(parameter, std=0.05)
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_a_saved_encoder_is_the_same_in_stock_timm(case, tmp_path):
    config = config_of(**CASES[case])
    model, size = model_of(config), config.data.size
    save_encoder(tmp_path, model, facts_of(config))
    stock = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    of_size = {"img_size": size} if stock.pretrained_cfg["fixed_input_size"] else {}
    file = tmp_path / "model.safetensors"
    by_name = timm.create_model(CASES[case]["image"], checkpoint_path=file, num_classes=0, **of_size).eval()
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        assert torch.allclose(stock(images), model.features(images), atol=1e-5)
        assert torch.allclose(by_name(images), model.features(images), atol=1e-5)
        loaded = load_encoder(tmp_path)
        assert torch.allclose(loaded.features(images), model.features(images), atol=1e-5)
        assert torch.allclose(loaded.embed_images(images), model.embed_images(images), atol=1e-5)
    assert model.features(images).shape == (2, stock.num_features)


@pytest.mark.parametrize("case", ["ViT", "two towers"])
def test_a_saved_model_is_a_start_for_all_of_another_one(case, tmp_path):
    config = config_of(**CASES[case])
    first = model_of(config)
    save_encoder(tmp_path, first, facts_of(config))
    config = resolve_defaults(config.model_copy(update={"model": config.model.model_copy(update={"start": str(tmp_path)})}))
    second = build_model(config.model, config.objective, config.adaptation, 32, start=find_start(tmp_path)).eval()
    images = torch.randn(3, 3, 32, 32)
    assert torch.allclose(first.embed_images(images), second.embed_images(images), atol=1e-5)
    assert any(name.endswith(".up") for name, _ in second.named_parameters()) == (config.adaptation.image == "lora")
    (tmp_path / "head.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"head.safetensors.*\[start-changed"):
        build_model(config.model, config.objective, config.adaptation, 32, start=find_start(tmp_path))


@pytest.mark.parametrize(("resize", "given"), [("model", True), ("model", False), ("squash", False)])
@pytest.mark.parametrize("image", ["test_vit", "test_convnext"])  # made for a fixed size, and for any
def test_stock_timm_also_sees_the_same_pixels(tmp_path, resize, given, image):
    described = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear"}
    save_file(timm.create_model(image, num_classes=0).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": image, "pretrained_cfg": described}))
    config = config_of(image, size=48, resize=resize, weights=str(tmp_path) if given else None)
    assert preprocessing_of(config.model, config.data.resize).mean == ((0.4, 0.5, 0.6) if given else (0.5,) * 3)
    model, tmp_path = model_of(config), tmp_path / "model"
    save_encoder(tmp_path, model, facts_of(config))
    stock = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=stock), is_training=False)
    pictures = [Image.effect_noise((50, 70), 90).convert("RGB"), Image.radial_gradient("L").convert("RGB")]
    with torch.no_grad():
        expected = stock(torch.stack([transform(picture) for picture in pictures]))
    assert torch.allclose(load(tmp_path).features(pictures), expected, atol=1e-4)


def test_loading_keeps_the_random_state_and_notices_damage(tmp_path):
    config = config_of("test_vit")
    save_encoder(tmp_path, model_of(config), facts_of(config))
    state = torch.random.get_rng_state()
    load_encoder(tmp_path)
    assert torch.equal(state, torch.random.get_rng_state())
    for name in ("head.safetensors", "model.safetensors"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-1] + b"x")
        with pytest.raises(UserError, match=rf"{name} .*\[model-file-damaged"):
            load_encoder(tmp_path)
        (tmp_path / name).write_bytes(whole)


def test_adapters_train_exactly_the_chosen_blocks():
    config = config_of("test_vit", adaptation={"image": "lora"})  # q and v
    model = model_of(config, stir=False)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert all(name.startswith("head.") or name.endswith((".up", ".down")) for name in trained)
    depth, width = 6, 64
    assert sum(p.numel() for n, p in model.named_parameters() if n.endswith((".up", ".down"))) == depth * 2 * 4 * 2 * width
    before = {name: value.clone() for name, value in merged_state(model).items()}
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.05)
    for name, value in merged_state(model).items():
        if name.endswith("qkv.weight"):
            same = [torch.equal(a, b) for a, b in zip(before[name].chunk(3), value.chunk(3), strict=True)]
            assert same == [False, True, False]
        else:
            assert torch.equal(before[name], value) == (not name.startswith("head."))


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_efficientnet_gn"])
def test_records_are_kept_apart(name):
    model = model_of(config_of(name))
    validate(model)
    check_independence(model, random_group(32))


class TestWeights:
    """A file as timm reads it, or what timm publishes; and the preprocessing that belongs to them."""

    @pytest.fixture(params=["classes", "none", "another size"])
    def source(self, request):
        torch.manual_seed(3)
        options = {"num_classes": 7} if request.param == "classes" else {"num_classes": 0}
        return timm.create_model("test_vit", img_size=64 if request.param == "another size" else 32, **options).eval()

    def features_of(self, source, images):
        source.set_input_size(img_size=32)
        return source.forward_head(source.forward_features(images), pre_logits=True)

    @pytest.mark.parametrize("file", ["w.safetensors", "w.pt", "checkpoint.pth"])
    def test_a_local_file(self, source, tmp_path, file):
        state = source.state_dict()
        if file.endswith("safetensors"):
            save_file(state, tmp_path / file)
        else:
            torch.save(state if file == "w.pt" else {"state_dict": state, "epoch": 3}, tmp_path / file)
        model = model_of(config_of("test_vit", weights=str(tmp_path / file)), stir=False)
        images = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            assert torch.allclose(model.features(images), self.features_of(source, images), atol=1e-4)

    def test_published_weights_come_with_their_preprocessing(self, source, monkeypatch):
        fetched = []

        def hub(repository, *_, **__):
            fetched.append(repository)
            return source.state_dict() | {"head.weight": torch.zeros(1000, 64), "head.bias": torch.zeros(1000)}

        monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", hub)
        config = config_of("test_vit", weights="r160_in1k")
        cfg = timm.get_pretrained_cfg("test_vit.r160_in1k")
        assert preprocessing_of(config.model, config.data.resize) == Preprocessing(cfg.mean, cfg.std, "crop", cfg.interpolation)
        assert not fetched  # looking it up fetches nothing
        model, images = model_of(config, stir=False), torch.randn(2, 3, 32, 32)
        assert len(fetched) == 1
        with torch.no_grad():
            assert torch.allclose(model.features(images), self.features_of(source, images), atol=1e-4)
        assert trained_of(model, config).start == "'r160_in1k'"
        build_model(config.model, config.objective, size=32, load_weights=False)
        assert len(fetched) == 1

    def test_the_digest_names_architecture_and_preprocessing(self):
        digests = [config_of(name).model.digest for name in ("test_vit", "test_vit2", "convnext_atto")]
        digests.append(config_of("convnext_atto", weights="d2_in1k").model.digest)
        assert len(set(digests)) == 4
        assert config_of("test_vit", size=64).model.digest == digests[0]
        with pytest.raises(UserError, match="timm/test_vit .* restore the version of timm.*run-model-changed"):
            config_of("test_vit", digest="0" * 16)


class TestMistakes:
    """One clear sentence each."""

    def refused(self, match, image="test_vit", **case):
        with pytest.raises(UserError, match=match) as caught:
            model_of(config_of(image, **case))
        assert str(caught.value).count("\n") == 0 and len(str(caught.value)) < 450

    def test_a_name_that_timm_does_not_know(self):
        self.refused(r"did you mean 'timm/vit_tiny_patch16_224'.*\[encoder-unknown", "vit_tiny_patch_224")
        self.refused(r"valid: .* more.*\[encoder-unknown", "?")
        self.refused("encoder-unknown", "")

    @pytest.mark.parametrize("name", ["resnet50", "resnetv2_50d", "efficientnet_b3"])
    def test_batch_norm_is_refused_with_a_sibling_before_building(self, name):
        said = rf"timm/{name}'.* take 'timm/{name}_gn'.*\[encoder-batch-norm"
        with pytest.raises(UserError, match=said):
            config_of(name)

    @pytest.mark.parametrize(("size", "near"), [(40, "32 or 48"), (10, "16 or 32")])
    def test_a_size_that_the_patches_do_not_divide(self, size, near):
        self.refused(rf"16 pixels.* = {size} .* to {near}.*\[encoder-patch-size", size=size)

    def test_weights_that_do_not_exist(self):
        self.refused(r"did you mean 'r160_in1k'.*\[weights-not-timm", weights="r160_in2k")
        self.refused("weights-not-timm", "vit_small_patch16_36x1_224", weights="x")

    def test_a_model_of_dpfed(self, tmp_path):
        """It is a start, so that what it was trained on is not forgotten."""
        config = config_of("test_vit")
        save_encoder(tmp_path, model_of(config), facts_of(config))
        for weights in (tmp_path, f"local-dir:{tmp_path}", tmp_path / "model.safetensors"):
            self.refused("weights-of-dpfed", weights=str(weights))

    def test_weights_of_something_else(self, tmp_path):
        path = tmp_path / "w.safetensors"
        save_file(timm.create_model("test_convnext", num_classes=0).state_dict(), path)
        self.refused("weights-misfit", weights=str(path))
        state = timm.create_model("test_vit", num_classes=0, img_size=32).state_dict()
        del state["blocks.3.attn.qkv.weight"]
        save_file(state, path)
        self.refused(r"blocks.3.attn.qkv.weight.*\[weights-misfit", weights=str(path))
        path.write_bytes(b"nothing")
        self.refused("weights-unreadable", weights=str(path))
        torch.save({"weight": torch.zeros(1000)}, tmp_path / "w.pt")
        content = (tmp_path / "w.pt").read_bytes()
        for damaged, said in ((content[:2000], "weights-damaged"), (b"\x80abc", "weights-unreadable")):
            (tmp_path / "w.pt").write_bytes(damaged)
            self.refused(said, weights=str(tmp_path / "w.pt"))
        torch.save([1, 2], tmp_path / "w.pt")
        self.refused(r"of a timm model.*\[weights-no-names", weights=str(tmp_path / "w.pt"))
        torch.save({"state_dict": timm.create_model}, tmp_path / "w.pt")
        self.refused("weights-unsafe", weights=str(tmp_path / "w.pt"))
        (tmp_path / "w.txt").write_text("not weights at all")
        self.refused("expected .safetensors, or .*weights-type", weights=str(tmp_path / "w.txt"))

    @pytest.mark.parametrize("key", ["mean", "std", "input_size", "interpolation", "crop_mode"])
    @pytest.mark.parametrize("value", [5, [], [1, 2], ["a", "b", "c"], [1, 2, -math.inf], [0, 0, math.nan]], ids=repr)
    def test_a_malformed_description(self, tmp_path, key, value):
        (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_vit", "pretrained_cfg": {key: value}}))
        (tmp_path / "model.safetensors").write_bytes(b"")
        with pytest.raises(UserError, match=rf"{key} of config.json.*\[weights-preprocessing"):
            timm_blueprint(ModelConfig(image="timm/test_vit", weights=str(tmp_path)))

    def test_a_missing_package(self, monkeypatch):
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "timm" else find_spec(name, *rest))
        self.refused("encoder-package")


def pictures_of_every_mode():
    """Odd sizes, a palette, transparency, and grey."""
    generator = np.random.default_rng(0)
    for width, height in ((31, 32), (32, 31), (20, 50), (64, 7), (32, 32)):
        picture = Image.fromarray(generator.integers(0, 255, (height, width, 4), dtype=np.uint8))
        yield from (picture.convert(mode) for mode in ("RGB", "RGBA", "LA", "L", "P"))
        holes = picture.convert("P")
        holes.info["transparency"] = 0
        yield holes


class TestWhatReproducesTheFeatures:
    """An exported encoder says how images are prepared, in words of libraries, also where timm's own transform cannot."""

    @pytest.fixture(params=["pad", "crop", "squash"])
    def saved(self, request, tmp_path):
        config = config_of("test_vit", resize=request.param)
        save_encoder(tmp_path, model_of(config), facts_of(config))
        return tmp_path, request.param

    @staticmethod
    def features(folder, transform, pictures):
        stock = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        with torch.no_grad():
            return stock(torch.stack([transform(picture) for picture in pictures]))

    def test_open_clips_transform_of_the_config_gives_them(self, saved):
        folder, _ = saved
        how = json.loads((folder / "config.json").read_text())["dpfed"]
        transform = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**how["preprocess_cfg"]), False)
        pictures = list(pictures_of_every_mode())
        assert how["preprocess_cfg"]["fill_color"] == 0 and "RGB afterwards" in how["note"]
        assert torch.allclose(load(folder).features(pictures), self.features(folder, transform, pictures), atol=1e-4)

    def test_the_code_of_the_hubs_page_gives_them(self, saved):
        folder, _ = saved
        code = loading_code("timm", describe(folder)).replace("hf-hub:OWNER/NAME", f"local-dir:{folder}")
        namespace = {}
        exec(code, namespace)
        pictures = list(pictures_of_every_mode())
        with torch.no_grad():
            expected = namespace["model"](torch.stack([namespace["transform"](picture) for picture in pictures]))
        assert torch.allclose(load(folder).features(pictures), expected, atol=1e-4)

    def test_timms_own_transform_is_called_the_same_only_where_it_is(self, saved):
        folder, resize = saved
        stock = timm.create_model(f"local-dir:{folder}", pretrained=True)
        transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=stock), is_training=False)
        pictures = [picture for picture in pictures_of_every_mode() if picture.mode == "RGB"]
        same = torch.allclose(load(folder).features(pictures), self.features(folder, transform, pictures), atol=1e-3)
        how = json.loads((folder / "config.json").read_text())["dpfed"]
        assert same == how["same_as_timm"] == (resize != "pad") and ("mean colour" in how["note"]) != same


def test_weights_that_saw_mean_borders_wait_for_the_users_choice(tmp_path):
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "model.safetensors")
    described = {"architecture": "test_vit", "pretrained_cfg": {"crop_mode": "border"}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="weights-border"):
        facts_of(config_of("test_vit", weights=str(tmp_path)))
    assert {
        facts_of(config_of("test_vit", resize=one, weights=str(tmp_path))).preprocessing.resize for one in ("pad", "crop")
    } == {"pad", "crop"}
