"""A small open_clip architecture: all that a large one has, in a tenth of a second."""

import json

import pytest

SMALL = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
SIGLIP = {
    "embed_dim": 64,
    "init_logit_bias": -10,
    "custom_text": True,
    "vision_cfg": {"image_size": 32, "timm_model_name": "test_vit", "timm_pool": "token", "timm_proj": "linear"},
    "text_cfg": {**SMALL["text_cfg"], "no_causal_mask": True, "proj_bias": True, "pool_type": "last"},
}


@pytest.fixture
def architecture(tmp_path):
    """Writes an architecture and gives the name under which a configuration finds it."""

    def write(content=SMALL, name="small.json"):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return str(path)

    return write
