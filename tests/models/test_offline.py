"""With HF_HUB_OFFLINE set, whatever has a name on the hub and is not in its cache is refused in one sentence that says so."""

import pytest
import tomli_w

pytest.importorskip("huggingface_hub")

from huggingface_hub import constants  # noqa: E402


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "model", "code"),
    [
        ("transformers", {"text": "sentence-transformers/all-MiniLM-L6-v2", "width": 8, "embedding": 16}, "text-unavailable"),
        ("open_clip", {"kind": "open_clip", "architecture": "ViT-B-32", "weights": "laion2b_s34b_b79k"}, "clip-fetch"),
        ("timm", {"image": "timm/vit_tiny_patch16_224", "weights": "augreg_in21k", "embedding": 16}, "weights-unavailable"),
    ],
)
def test_a_model_by_name_is_refused_naming_the_setting(package, model, code, tiny, tmp_path, offline, dpfed):
    pytest.importorskip(package)
    tiny["model"] = {"kind": "image-text", **model}
    tiny["data"]["size"] = 224
    (tmp_path / "offline.toml").write_text(tomli_w.dumps(tiny))
    ended, _, said = dpfed("pretrain", tmp_path / "offline.toml", "--run", tmp_path / "run")
    assert ended == 2 and f"[{code}]" in said
    assert "(HF_HUB_OFFLINE is set, and the cache of the Hugging Face hub lacks these files)" in said
    assert not (tmp_path / "run").exists()
