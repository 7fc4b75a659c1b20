"""Who is compared: by name, what makes it, what it needs, and how much it may take at a time."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PLAIN = "no privacy"


@dataclass(frozen=True)
class Contender:
    """One way to compute a step.

    Attributes:
        where: module in this folder, and the name of its function there: of a problem, and of how much it takes at a time.
        problem: module in this folder, and the name of its class of problems there.
        needs: package that must be installed.
        at_once: how much it may take at a time, of which the fastest is chosen: groups, or for `PLAIN` records; or, by name,
            which engine it may take. 0: it knows.
        groups: whether it can clip groups of several records.
    """

    where: str
    problem: str = "problem:Problem"
    needs: str = "torch"
    at_once: tuple[int, ...] | tuple[str, ...] = (0,)
    groups: bool = True

    def make(self, problem: Mapping[str, Any], at_once: int | str) -> Callable[[], Any]:
        """What computes the step."""
        return _found(self.where)(_found(self.problem)(**problem), at_once)

    @property
    def there(self) -> bool:
        """Whether it can run here."""
        return importlib.util.find_spec(self.needs) is not None


def _found(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)


STEPS = {
    PLAIN: Contender("torch_steps:without_privacy", at_once=(32, 128)),
    "dpfed": Contender("torch_steps:ours", at_once=("loop", "layerwise")),
    "torch.func": Contender("torch_steps:torch_func", at_once=(8, 32)),
    "jax_privacy": Contender("jax_step:jax_privacy", needs="jax_privacy", at_once=(1, 8, 32)),
    "Opacus, hooks": Contender("torch_steps:opacus_hooks", needs="opacus", at_once=(32, 128), groups=False),
    "Opacus, ghost": Contender("torch_steps:opacus_ghost", needs="opacus", at_once=(32, 128), groups=False),
}
_CLIP = {"problem": "clip_steps:ClipProblem", "needs": "open_clip"}
CLIPS = {
    "open_clip, all weights": Contender("clip_steps:full", **_CLIP),
    "open_clip, adapters": Contender("clip_steps:adapters_only", **_CLIP),
    "dpfed, S = 4": Contender("clip_steps:in_groups", at_once=(4,), **_CLIP),
    "dpfed, S = 16": Contender("clip_steps:in_groups", at_once=(16,), **_CLIP),
}
SAMPLERS = {
    "dpfed sampler": Contender("samplers:gaps", "samplers:Draw"),
    "Opacus sampler": Contender("samplers:opacus", "samplers:Draw", needs="opacus"),
    "jax_privacy sampler": Contender("samplers:jax_privacy", "samplers:Draw", needs="jax_privacy"),
}
ALL = STEPS | CLIPS | SAMPLERS
