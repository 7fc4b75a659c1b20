"""What makes the host wait for a GPU, seen without one: the device is `meta`, whose tensors have no numbers."""

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfed.data import transfer

META = torch.device("meta")
QUESTIONS = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "unique", "cpu", "numpy", "equal"}
MAKERS = {"tensor", "as_tensor", "new_tensor"}  # which copy what Python has from memory that is not pinned


def tensors(value):
    return [part for part in tree_leaves(value) if isinstance(part, torch.Tensor)]


class _Copies(TorchDispatchMode):
    """Notes operations between host and device, but for copies from pinned memory that nobody waits for."""

    def __init__(self, pinned, seen):
        super().__init__()
        self.pinned, self.seen = pinned, seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results, kwargs = func(*args, **(kwargs or {})), kwargs or {}
        copies = "copy" in str(func)  # other operations take numbers of the host along
        given = [part for part in tensors((args, kwargs)) if part.dim() or copies]
        if len({part.device.type for part in given + tensors(results)}) > 1 and given:
            from_host = all(part.data_ptr() in self.pinned for part in given if part.device.type == "cpu")
            to_host = any(part.device.type == "cpu" for part in tensors(results))
            if to_host or not (from_host and kwargs.get("non_blocking")):
                self.seen.append(str(func))
        return results


class Asked(TorchFunctionMode):
    """Notes what waits for a device's numbers, and what brings it numbers of Python."""

    def __init__(self, device, seen):
        super().__init__()
        self.device, self.seen = device, seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in QUESTIONS and any(part.device == self.device for part in tensors((args, kwargs))):
            self.seen.append(name)
        if name == "__setitem__" and self.device == META == args[0].device and not isinstance(args[2], torch.Tensor):
            self.seen.append(name)  # on a GPU, the number becomes a tensor of the host first, and is copied
        results = func(*args, **(kwargs or {}))
        if name in MAKERS and self.device == META == results.device:
            self.seen.append(name)
        return results


class NoKernel:
    """In place of a kernel, whose numbers do not matter here."""

    def __getitem__(self, grid):
        return lambda *given, **named: None


@pytest.fixture
def host_waits(monkeypatch):
    """A block that yields what made the host wait; `meta` stands for a GPU, and marked memory for pinned memory."""
    kept, pinned = [], set()

    def pin(values):
        kept.append(values.clone())
        pinned.add(kept[-1].data_ptr())
        return kept[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(transfer, "copies_beside", lambda device: device == META)

    @contextlib.contextmanager
    def block():
        seen = []
        with _Copies(pinned, seen), Asked(META, seen):
            yield seen

    return block
