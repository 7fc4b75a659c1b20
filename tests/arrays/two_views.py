"""Two matrices that share a subspace, and what sees how much of it heads have found."""

import numpy as np


def two_views(rows, widths=(48, 40), shared=6, noise=0.7, seed=0):
    """X (rows, F) and Y (rows, G), float32: linear functions of a few common numbers, with noise of their own."""
    mixing, drawn = np.random.default_rng(99), np.random.default_rng(seed)
    common = drawn.standard_normal((rows, shared))
    return tuple(
        (common @ mixing.standard_normal((shared, width)) / shared**0.5 + noise * drawn.standard_normal((rows, width))).astype(
            "f4"
        )
        for width in widths
    )
