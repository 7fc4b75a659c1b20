"""Whether all contenders compute the same clipped sum, on a tiny batch."""

from __future__ import annotations

import dataclasses

import torch

from benchmarks.peers.contenders import PLAIN, STEPS
from benchmarks.peers.problem import Problem
from dpfed.bounding.engines import LoopEngine

AT_ONCE = 3  # of the groups: so there are several passes


def differences(size: int, groups: int = 6) -> dict[str, float]:
    """Each contender's distance from the loop's sum, over its length. C is the median of the norms, so half are clipped.

    Args:
        size: S.
        groups: G.
    """
    problem = Problem(size, size * groups)
    model, batch = problem.model(), problem.group_batch()
    loop = LoopEngine(model, loss=problem.loss())
    norms = loop.add_clipped(batch, 1.0, loop.zeros())
    problem = dataclasses.replace(problem, clip_norm=norms.median().item())
    unclipped = dataclasses.replace(problem, clip_norm=10 * norms.max().item())
    found = {}
    for name, contender in STEPS.items():
        if contender.there and (contender.groups or size == 1):
            asked = unclipped if name == PLAIN else problem
            expected = loop.zeros()
            loop.add_clipped(batch, asked.clip_norm, expected)
            ways = [way if isinstance(way, str) else AT_ONCE for way in contender.at_once]
            sums = [contender.make(dataclasses.asdict(asked), way)() for way in set(ways)]
            found[name] = max(float(torch.linalg.vector_norm(one - expected) / expected.norm()) for one in sums)
    return found
