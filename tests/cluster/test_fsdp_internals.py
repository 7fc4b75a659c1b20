"""FSDP2 has what dpfed takes from it beyond its documented API, and does what sharded clipping needs; here on one rank."""

import inspect
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from cluster import fsdp_internals
from cluster.fsdp_internals import BlockGradient, quiet, squares, whole_parameters

UPGRADE = "FSDP2 has changed: cluster/fsdp_internals.py says what to do on an upgrade."


def test_the_version_of_torch_was_looked_at():
    installed = tuple(map(int, torch.__version__.split(".")[:2]))
    assert installed <= tuple(map(int, fsdp_internals.CHECKED.split("."))), UPGRADE


def test_what_fsdp_calls_has_the_parameters_that_it_is_called_with():
    for name in ("allocate", "__call__"):
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in BlockGradient.__mro__[:2])
        assert list(ours) == list(theirs), UPGRADE
        assert [one.kind for one in ours.values()] == [one.kind for one in theirs.values()], UPGRADE
    for setter in ("set_custom_reduce_scatter", "set_all_reduce_hook", "set_gradient_divide_factor"):
        assert len(inspect.signature(getattr(FSDPModule, setter)).parameters) >= 2, UPGRADE


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_gradient_is_measured_and_then_released_with_its_factor(mesh):
    model, records = nn.Linear(3, 5), torch.randn(4, 3)
    model(records).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    fully_shard(model, mesh=mesh)
    block = BlockGradient(model, 1)
    loss = model(records).square().sum()
    block.measure()
    loss.backward(retain_graph=True)
    torch.testing.assert_close(block.squares, sum(map(squares, expected)), msg=UPGRADE)
    model.zero_grad()
    block.release(torch.tensor(0.25))
    loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.to_local(), gradient / 4, msg=UPGRADE)


def test_a_gathered_parameter_is_the_same_tensor_in_every_pass_and_has_its_values_when_it_is_read(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    weights = [layer.weight.detach().clone() for layer in model]
    records, gradient = torch.randn(4, 3, requires_grad=True), torch.randn(4, 2)
    for module in (*model, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    names = [name for name, _ in model.named_parameters()]
    blocks = whole_parameters(model, names)
    assert [sorted(block) for block in blocks] == [[0, 1], [2, 3]], UPGRADE
    for block in blocks:
        assert not any(p.untyped_storage().nbytes() for p in block.values()), UPGRADE  # let go
    for factor in (1.0, -2.0):  # as another step's parameters would be
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().mul_(factor)
        weights = [weight * factor for weight in weights]
        seen = []

        def detached(layer, inputs, output, seen=seen):
            seen.append(layer.weight)
            return nn.functional.linear(inputs[0], layer.weight.detach(), layer.bias.detach())

        handles = [layer.register_forward_hook(detached, prepend=True) for layer in model]
        records.grad = None
        (model(records) * gradient).sum().backward()
        assert [id(weight) for weight in seen] == [id(blocks[0][0]), id(blocks[1][2])], UPGRADE
        torch.testing.assert_close(records.grad, gradient @ weights[1] @ weights[0], msg=UPGRADE)
        assert all(parameter.grad is None for parameter in model.parameters()), UPGRADE
        for handle in handles:
            handle.remove()


def test_the_warning_about_views_is_left_out(mesh):
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, records):
            return self.layer(records)[:, :1]

    for silent in (False, True):
        model = Halves()
        fully_shard(model, mesh=mesh)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if silent:
                quiet(model)
            model(torch.randn(2, 2))
        assert bool([one for one in said if "FSDP2" in str(one.message)]) != silent, UPGRADE
