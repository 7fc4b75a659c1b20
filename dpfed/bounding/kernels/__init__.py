"""Contains Triton kernels for GPUs.

Triton comes with torch's GPU builds. Without Triton, functions of torch are called for one group after the other.
"""

from dpfed.bounding.kernels.group_norm import normalise, pull_back
from dpfed.bounding.kernels.group_sums import squares, weighted_sum
from dpfed.bounding.kernels.grouped_convolution import grouped_convolution
from dpfed.bounding.kernels.outer_products import outer_products

__all__ = ["grouped_convolution", "normalise", "outer_products", "pull_back", "squares", "weighted_sum"]
