"""Group clipping (DP-GCL, algorithm 1): clip each group's gradient to C, add the groups up.

Every drawn record joins one of K groups, chosen independently of all others. Two neighbouring data sets therefore have the same
groups but for one, whose gradient lies in a ball of radius C before and after: the sum moves by at most **2C**
(docs/guarantee.md has the long form, with units, caps, and several owners).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed.privacy.method import Build, Method

if TYPE_CHECKING:
    from dpfed.bounding.engines import Engine


def group_engine(build: Build) -> Engine:
    """The configured engine for gradients of groups."""
    from dpfed.bounding.engines import build_engine

    config, method = build.config, build.plan.bounding.method
    engine, precision = config.bounding.engine, config.training.precision
    size, records = method.contrasted(config), config.bounding.pass_records
    return build_engine(engine, build.model, precision, method.loss(config), size, records=records)


METHOD = Method(
    name="group",
    title="group clipping (DP-GCL)",
    claim="Records are contrasted inside small groups, and each group's gradient is clipped: a record moves one group, by 2C.",
    sensitivity=lambda given: 2 * given.clip_norm,
    engine=group_engine,
    picks_engine=True,
    units=True,
    proven_in_floats=True,
    measured=True,
)
