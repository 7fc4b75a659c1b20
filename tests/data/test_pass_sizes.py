"""A pass without gradients holds as many records as fit: 512 small ones, and fewer of larger images."""

import pytest
import torch

from dpfed.data import memory
from dpfed.data.memory import records_without_gradients


@pytest.mark.parametrize(
    ("side", "gigabytes", "records"), [(32, 24, 512), (128, 24, 238), (128, 4, 39), (336, 4, 5), (4096, 1, 1)]
)
def test_larger_images_and_less_memory_make_smaller_passes(monkeypatch, side, gigabytes, records):
    monkeypatch.setattr(memory, "memory_of", lambda device: int(gigabytes * 1e9))
    assert records_without_gradients((3, side, side), torch.device("cpu")) == records


@pytest.mark.parametrize(
    ("cgroup", "files", "least"),
    [
        ("0::/\n", {"memory.max": "3000000000"}, 3e9),
        ("0::/user/job\n", {"user/memory.max": "2000000000", "user/job/memory.max": "max", "memory.max": "max"}, 2e9),
        ("4:memory:/box/job\n3:cpu:/box\n", {"memory/box/job/memory.limit_in_bytes": "1000000000"}, 1e9),
        ("4:memory:/far/away\n", {"memory/memory.limit_in_bytes": "4000000000"}, 4e9),
        ("4:memory:/box\n", {"memory/box/memory.limit_in_bytes": str(2**63 - 4096), "cpu/memory.max": "5"}, None),
    ],
    ids=["v2", "v2-around", "v1", "v1-hidden", "none"],
)
def test_the_memory_there_is_ends_at_the_least_control_group(tmp_path, monkeypatch, cgroup, files, least):
    whole = memory.memory_of(torch.device("cpu"))
    (tmp_path / "own").write_text(cgroup)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    assert memory.memory_of(torch.device("cpu")) == (least or whole)
