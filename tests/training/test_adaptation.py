"""A whole run that adapts open_clip towers: what is trained, kept, sent and given back."""

import json
import shutil

import open_clip
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import dpfed
from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.export import export_model
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain, resume
from dpfed.runs.reevaluation import evaluate_run
from dpfed.training.coordinator import Coordinator
from tests.conftest import tiny_tree
from tests.data.views.files_of_all_modes import colours, encoded
from tests.killed import killed
from tests.models.conftest import SMALL
from tests.sparing import sparing


@pytest.fixture
def adapting(tiny, tmp_path):
    """The tiny run with small open_clip towers and adapters."""
    return with_adapters(tiny, tmp_path)


def with_adapters(tiny, folder):
    (folder / "small.json").write_text(json.dumps(SMALL))
    tiny["model"] = {"kind": "open_clip", "architecture": str(folder / "small.json")}
    tiny["data"].pop("size")
    tiny["adaptation"] = {"rank": 4}
    tiny["privacy"]["accountant"] = "rdp"  # quick
    tiny["text_views"] = {"word_swap": 0.3}
    tiny["objective"] = {"augmentations": 1, "temperature": 0.1}
    return tiny


@pytest.fixture(scope="module")
def shared(shapes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    return pretrain(parse_config(with_adapters(tiny_tree(shapes), folder)), folder / "run")


@pytest.fixture
def adapted(shared):
    """A finished adaptation; tests change nothing there."""
    before = {path: path.stat().st_mtime_ns for path in shared.path.rglob("*") if path.name != ".lock"}
    yield shared
    assert before.items() <= {path: path.stat().st_mtime_ns for path in shared.path.rglob("*")}.items()


def tensors_of(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.mark.long
def test_only_what_is_trained_is_kept_and_only_it_moves(adapted):
    run = adapted
    first, *_, last = (tensors_of(path) for path in sorted(run.checkpoints.iterdir()))
    weights = {name for name in last if name.startswith("model/")}
    assert weights and all("parametrizations" in name and name.endswith((".up", ".down")) for name in weights)
    assert {name for name in first if name.startswith("model/")} > weights
    trained = sum(last[name].numel() for name in weights)
    state = [value.numel() for name, value in last.items() if name.startswith("optimizer/")]
    assert sum(state) <= 2 * trained + len(state)  # two moments and a counter each, and of nothing that is frozen
    assert any(not torch.equal(first[name], last[name]) for name in weights)
    before, after = tensors_of(run.model / "open_clip_model.safetensors"), first
    frozen = [name for name in before if f"model/clip.{name}" in after]
    assert frozen and all(torch.equal(before[name], after[f"model/clip.{name}"]) for name in frozen)


@pytest.mark.long
def test_the_model_of_a_run_is_stock_open_clip(adapted):
    run = adapted
    stock = open_clip.create_model(f"local-dir:{run.model}").eval()
    tokenize = open_clip.get_tokenizer(f"local-dir:{run.model}")
    encoder = dpfed.load(run.path)
    captions = ["a small red circle above a large blue ring", "a dog"]
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(stock.visual.preprocess_cfg[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        assert torch.allclose(stock.encode_text(tokenize(captions), normalize=True), encoder.embed_text(captions), atol=1e-5)
        z = stock.encode_image((images / 255 - mean) / std, normalize=True)
    assert torch.allclose(z, encoder.embed_images(images), atol=1e-5)


def test_a_model_is_exported_once(adapted, tmp_path):
    whole = export_model(adapted.path, tmp_path / "out" / "model")
    assert {path.name for path in whole} >= {"open_clip_config.json", "open_clip_model.safetensors", "model.json"}
    with pytest.raises(UserError, match="exists already"):
        export_model(adapted.path, tmp_path / "out" / "model")


@pytest.mark.long
@pytest.mark.parametrize("at", sparing([1, 3, 5], 3))
def test_an_interrupted_adaptation_resumes_to_the_same_bits(adapting, tmp_path, at):
    config = parse_config({**adapting, "privacy": {**adapting["privacy"], "seed": 5}})
    expected = tensors_of(pretrain(config, tmp_path / "whole").model / "open_clip_model.safetensors")
    with killed(Coordinator, "apply", at, error=KeyboardInterrupt):
        pretrain(config, tmp_path / "cut")
    tensors = tensors_of(resume(tmp_path / "cut").model / "open_clip_model.safetensors")
    assert all(torch.equal(expected[name], value) for name, value in tensors.items())


def test_a_finished_adaptation_is_measured_again_alike(shared, tmp_path):
    run = RunDirectory.open(shutil.copytree(shared.path, tmp_path / "run"))
    before = {(e["name"], e["model"], e["step"]): e["value"] for e in json.loads(run.results.read_text())["evaluations"]}
    for figure in evaluate_run(run.path):
        assert figure.value == before[(figure.name, figure.model, figure.step)]


@pytest.mark.long
def test_the_card_says_what_was_trained_and_where_it_started(adapting, adapted, tmp_path):
    card = adapted.card.read_text()
    assert "LoRA of rank 4 on q, v" in card and "starting weights: random" in card
    adapting["model"] = {"kind": "open_clip", "architecture": f"local-dir:{adapted.model}"}
    adapting["privacy"]["steps"] = 1
    adapting["adaptation"] = {"image": "frozen", "text": "full"}
    second = pretrain(parse_config(adapting), tmp_path / "second").card.read_text()
    assert "image tower: frozen" in second and "text tower: in full" in second
    assert "The starting weights: the guarantee does not cover" in second
    assert str(tmp_path) not in second


@pytest.mark.long
@pytest.mark.parametrize(("resize", "interpolation"), [("shortest", "bicubic"), ("longest", "bilinear")])
def test_stock_open_clip_reads_what_the_run_was_trained_on(adapting, tmp_path, resize, interpolation):
    architecture = {"model_cfg": SMALL, "preprocess_cfg": {"resize_mode": resize, "interpolation": interpolation}}
    (tmp_path / "small.json").write_text(json.dumps(architecture))
    lines = ["filepath\ttitle"]
    for number in range(48):
        (tmp_path / f"{number}.png").write_bytes(encoded(Image.fromarray(colours(40 + number, 80 - number)), "PNG"))
        lines.append(f"{number}.png\tpicture {number}")
    (tmp_path / "table.tsv").write_text("\n".join(lines))
    adapting["data"] = {"source": "table", "path": str(tmp_path / "table.tsv"), "stores": str(tmp_path / "stores")}
    adapting["privacy"] |= {"batch": 12, "steps": 1}
    adapting["evaluation"] = {"split": "none"}
    run = pretrain(parse_config(adapting), tmp_path / "run")
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{run.model}")
    parts, encoder = build(run.config()), dpfed.load(run.path)
    rows = range(48)
    files = [Image.open(tmp_path / id) for id in parts.store.ids(rows)]
    shown = torch.stack([preprocess(image) for image in files])
    assert torch.allclose(parts.views.images.plain(parts.views.read(parts.store, rows)), shown, atol=1e-6)
    with torch.no_grad():
        features = model.eval().encode_image(shown, normalize=True)
    assert torch.allclose(encoder.embed_images(files), features, atol=1e-5)
