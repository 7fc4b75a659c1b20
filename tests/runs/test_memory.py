"""What cannot fit into memory is refused before any of it is built."""

import json
import types

import pytest
import torch

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.files.shipped import configs
from dpfed.models.building import build_model
from dpfed.runs import memory
from dpfed.runs.memory import records_of_a_pass, require_memory
from dpfed.runs.resolution import changed, resolve_defaults

CPU = torch.device("cpu")
GIVEN = {"name": "sizes", "data": {"source": "store", "path": "/records"}, "privacy": {"epsilon": 8.0, "batch": 60, "steps": 4}}


def config_of(model, **sections):
    return resolve_defaults(parse_config({**GIVEN, "model": model, **sections}))


@pytest.fixture
def tower(tmp_path):
    def written(**vision):
        cfg = json.loads((configs() / "towers" / "small.json").read_text())
        cfg["vision_cfg"] |= vision
        (tmp_path / "tower.json").write_text(json.dumps(cfg))
        return {"kind": "open_clip", "architecture": str(tmp_path / "tower.json")}

    return written


@pytest.mark.parametrize("width", [32_768, 1_048_576])
def test_an_open_clip_model_too_large_is_refused_unbuilt(tower, width):
    with pytest.raises(UserError, match=r"takes at least .* [\d,]+ parameters, .*\[memory-too-little"):
        require_memory(config_of(tower(width=width)), CPU)


@pytest.mark.parametrize("adaptation", [{}, {"image": "lora", "text": "lora"}])
def test_frozen_weights_are_held_once_trained_ones_four_times(tower, adaptation, monkeypatch):
    config = config_of(tower(), adaptation=adaptation)
    model = build_model(config.model, config.objective, config.adaptation, config.data.size)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    least = 4 * sum(count * (4 if trained else 1) for count, trained in sizes)
    monkeypatch.setattr(memory, "memory_of", lambda _: least - 1)
    with pytest.raises(UserError, match="memory-too-little"):
        require_memory(config, CPU)
    monkeypatch.setattr(memory, "memory_of", lambda _: 8 * least)
    require_memory(config, CPU)


def test_the_sizes_are_taken_without_drawing_a_random_number(tower):
    state = torch.random.get_rng_state()
    require_memory(config_of(tower()), CPU)
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_gpu_with_too_little_memory_is_refused(tower, monkeypatch):
    small = types.SimpleNamespace(total_memory=1 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: small)
    with pytest.raises(UserError, match=r"0.0 GB of memory.*\[memory-too-little"):
        require_memory(config_of(tower()), torch.device("cuda"))


_KEYS = {"group": "bounding.group_size", "public": "public.records", "sample": None, "moments": None}


@pytest.mark.parametrize("method", _KEYS)
def test_only_keys_that_have_an_effect_are_to_be_lowered(tower, monkeypatch, method):
    config = changed(config_of(tower()), bounding={"method": method})
    monkeypatch.setattr(memory, "memory_of", lambda _: 1)
    with pytest.raises(UserError, match="memory-too-little") as caught:
        require_memory(config, CPU)
    named = next((key for key in ("bounding.group_size", "public.records") if key in str(caught.value)), None)
    assert named == _KEYS[method]


def test_a_gpus_pass_fills_a_third_of_its_memory_at_most(tower, monkeypatch):
    config, counts = config_of(tower(), adaptation={"image": "full", "text": "full"}), []
    assert records_of_a_pass(config, CPU) is None
    for gigabytes in (0.01, 0.1, 1, 80):
        monkeypatch.setattr(memory, "memory_of", lambda _, there=gigabytes: int(there * 1e9))
        counts.append(records_of_a_pass(config, torch.device("cuda")))
    assert counts == sorted(counts) and counts[0] == 32 and counts[-1] == 512 and len(set(counts)) > 2
