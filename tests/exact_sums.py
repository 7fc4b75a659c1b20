"""Sums as workers send them: whole numbers of steps of the plan's grid."""

from dpfed.bounding.bounded_sum import BoundedSum


def exact(values, plan, groups=None, sensitivity=None):
    """A sum that stands for these numbers, rounded to the grid."""
    unit = plan.grid_of().unit
    steps = (values.double() / unit).round().long()
    return BoundedSum(
        steps, plan.sensitivity if sensitivity is None else sensitivity, plan.groups if groups is None else groups, unit=unit
    )
