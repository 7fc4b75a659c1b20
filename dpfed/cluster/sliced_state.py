"""An optimizer's state that lies in slices on all ranks: from rank 0's own, and back to it for checkpoints.

A checkpoint holds the state as one process has it, so a run goes on with any number of ranks, or with none but one.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import Tensor

from dpfed.cluster.link import Link
from dpfed.cluster.slices import Slices
from dpfed.models.parameters import TrainableVector
from dpfed.training.coordinator import Coordinator
from dpfed.training.post_processing import MovingAverage


def spread(link: Link, slices: Slices, vector: TrainableVector, coordinator: Coordinator | None = None) -> None:
    """Gives every rank its slice of the optimizer's state and of the weights' average.

    Args:
        link: to the other ranks.
        slices: this rank's.
        vector: of the model.
        coordinator: on rank 0.
    """
    states = [] if coordinator is None else [coordinator.optimizer.state.get(one, {}) for one in vector.parameters]
    names, numbers = _kinds(states[0], vector.parameters[0]) if states else ([], {})
    names, numbers = json.loads(link.broadcast(json.dumps([names, numbers]).encode()))
    own: dict[str, list[Tensor]] = {}
    for name in names:
        whole = torch.cat([state[name].reshape(-1) for state in states]) if states else None
        own[name] = slices.update.vector.split(_handed_out(slices, vector, whole))
    optimizer = slices.update.optimizer
    if optimizer is not None and (names or numbers):
        state = {
            index: {name: own[name][index] for name in names}
            | {name: torch.tensor(value, dtype=torch.float32) for name, value in numbers.items()}
            for index in range(len(slices.update.vector.parameters))
        }
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    if slices.update.average is not None:
        whole = None if coordinator is None else _average(coordinator).served(torch.empty(0))
        slices.update.average.load_state_dict({"weights": _handed_out(slices, vector, whole)})


def collect(link: Link, slices: Slices, vector: TrainableVector, coordinator: Coordinator | None = None) -> None:
    """Brings the state back to rank 0's optimizer and average; see `spread`."""
    optimizer = slices.update.optimizer
    pieces = slices.update.vector.parameters
    states = [] if optimizer is None else [optimizer.state.get(piece, {}) for piece in pieces]
    names, numbers = _kinds(states[0], pieces[0]) if states else ([], {})
    names = json.loads(link.broadcast(json.dumps(names).encode()))
    for name in names:
        whole = slices.gather(slices.update.vector.joined([state[name] for state in states]))
        if coordinator is not None and whole is not None:
            for parameter, part in zip(vector.parameters, vector.split(whole), strict=True):
                coordinator.optimizer.state[parameter][name] = part.clone()
    if coordinator is not None and names:
        for parameter in vector.parameters:
            coordinator.optimizer.state[parameter] |= {name: torch.tensor(value) for name, value in numbers.items()}
    if slices.update.average is not None:
        whole = slices.gather(slices.update.average.served(torch.empty(0)))
        if coordinator is not None and whole is not None:
            _average(coordinator).load_state_dict({"weights": whole})


def _kinds(state: dict[str, object], parameter: Tensor) -> tuple[list[str], dict[str, float]]:
    """The names of what an optimizer keeps of each number of a parameter, and what it keeps of a parameter as a whole."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    of_numbers = sorted(name for name, value in tensors.items() if value.shape == parameter.shape and name != "step")
    return of_numbers, {name: float(value) for name, value in tensors.items() if name not in of_numbers}


def _handed_out(slices: Slices, vector: TrainableVector, whole: Tensor | None) -> Tensor:
    """This rank's slice of rank 0's ``(P,)`` numbers."""
    if whole is None:
        whole = torch.empty(vector.numel, device=vector.device)
    whole = whole.float().contiguous()
    dist.broadcast(whole, 0)
    own = slices.update.vector
    return whole[own.start : own.start + own.numel].clone()


def _average(coordinator: Coordinator) -> MovingAverage:
    return next(processor for processor in coordinator.post_processors if isinstance(processor, MovingAverage))
