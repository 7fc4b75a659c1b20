"""Fixed-point encoding of real vectors in the ring of integers modulo 2^32, in which masks are added and sums wrap.

A site rounds its clipped sum *after* it has added its own part of the noise. The privacy cost of the rounding is negligible.
Let a be the number of sites whose sums are added. In units of the spacing, let site i hold u_i + G_i = k_i + r_i with u_i its
clipped sum, G_i ~ N(0, m^2), k_i the nearest integer and r_i the rounding error. By Poisson summation over all integer vectors
(k_1, .., k_a) with sum z, the sum Z of the k_i and all the rounding errors together have the density

    p(z, r_1 .. r_a) = phi(z + sum r_i - sum u_i) (1 + theta),   |theta| <= 3 a exp(-pi^2 m^2),

phi being the density of N(0, a m^2). Without theta this is the exact Gaussian mechanism on the sum, T = sum u_i + N(0, a m^2),
followed by a step that does not look at the data: draw r_1 .. r_(a-1) uniformly, and split T - r_1 - .. - r_(a-1) into its
nearest integer z and the rest r_a. So Z, even with every rounding error published, is post-processing of the mechanism that
the plan accounts for, up to the factor 1 + theta; `Grid.for_sums` has m >= 64, where theta < a 1e-17000. The sensitivity is
unchanged.

**Proof.** k_i + r_i = u_i + G_i, so with c_i = r_i - u_i

    p(z, r) = sum over integer vectors k with k_1 + .. + k_a = z of prod_i (2 pi m^2)^(-1/2) exp(-(k_i + c_i)^2 / (2 m^2)).

Write S = z + sum c_i. The vector k + c has the component S / sqrt(a) along (1, .., 1) and a component w orthogonal to it, so
|k + c|^2 = S^2 / a + |w|^2. w runs through a shifted copy L + o of the lattice L of the integer vectors with sum zero, which
has dimension a - 1 and determinant sqrt(a). Poisson summation gives

    sum over w in L + o of exp(-|w|^2 / (2 m^2))
        = (2 pi m^2)^((a-1)/2) / sqrt(a) * sum over y in L* of exp(-2 pi^2 m^2 |y|^2) cos(2 pi <y, o>).

The term y = 0 is 1, and the factors before it make phi(S). So |theta| is at most the sum of exp(-2 pi^2 m^2 |y|^2) over y != 0
in L*, which consists of the integer vectors j projected orthogonally to (1, .., 1): |y|^2 = |j|^2 - (sum j)^2 / a, the same for
j + (c, .., c). Choose for each y a j whose median is 0. Then at most a/2 entries are positive and at most a/2 negative, so
(sum j)^2 <= (a/2) |j|^2 by Cauchy-Schwarz, and |y|^2 >= |j|^2 / 2. Therefore

    |theta| <= sum over integer j != 0 of exp(-pi^2 m^2 |j|^2) = (1 + 2 sum_{l >= 1} exp(-pi^2 m^2 l^2))^a - 1,

at most 3 a exp(-pi^2 m^2) as long as a exp(-pi^2 m^2) < 1/10. For a = 1, theta = 0. QED

**Discrete noise.** The sum of site i is an integer s_i on a finer grid. The site adds X_i with P(x) = exp(-x^2 / 2 m^2) / N,
and sends k_i, nearest to (s_i + X_i) / c with c = 2^j; r_i = s_i + X_i - c k_i is one of c integers. Let S = sum s_i and
Theta(m) be the bound above. (Z, r_1, .., r_a) is post-processing of S + X, with X a discrete Gaussian of parameter m sqrt(a),
up to a factor of 1 + theta in each probability, |theta| <= 3 (Theta(m) + Theta(m / c)).

**Proof.** The probability of (z, r) is the sum over integer vectors k with sum z of prod_i exp(-(c k_i + r_i - s_i)^2 / 2 m^2)
/ N. That is the sum above in units of c, with m / c for m and (r_i - s_i) / c for c_i. So it is A exp(-(c z + sum r - S)^2 /
(2 a m^2)) (1 + theta'), |theta'| <= Theta(m / c), where A depends on m, c and a alone. Now draw T from S + X, and r_1, ..,
r_(a-1) uniformly from their c values; split T - r_1 - .. - r_(a-1) into its nearest multiple c z and the rest r_a. The map is
one-to-one, so (z, r) gets A' exp(-(c z + sum r - S)^2 / (2 a m^2)), and A' does not depend on S either. Both add up to 1, so A
and A' differ by no more than the thetas do. QED
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpfed.errors import UserError

LEAST_STEPS = 64  # grid steps in one standard deviation of a site's noise
_TAIL = 12  # standard deviations of the sum's noise that the ring has room for
_HALF_RING = 2.0**31
_CHUNK = 1 << 18  # coordinates at a time: bounds the float64 workspace


@dataclass(frozen=True)
class Grid:
    """A grid of evenly spaced real numbers, encoded as uint32.

    Attributes:
        spacing: Distance between neighbours. A power of two makes scaling exact in floating point.
        digits: Number of low-order bits that `encode_steps` rounds away: the integers that it gets count steps of a finer
            grid, whose spacing is smaller by a factor of 2^digits. Default 0.
    """

    spacing: float
    digits: int = 0

    @classmethod
    def for_sums(cls, bound: float, noise_std: float, share_std: float, unit: float | None = None) -> Grid:
        """Returns the finest grid on which the sum of all sites practically never wraps.

        A coordinate wraps only if its noise exceeds 12 standard deviations (less half a grid step of rounding per site). This
        has probability 4e-33. The probability that any of 11 million coordinates wraps in any of 1,200 steps is 5e-23. A
        coordinate that wraps is wrong by 2^32 grid steps. The release stays a function of the sum modulo 2^32, so wrapping
        costs accuracy and never privacy.

        Args:
            bound: Largest L2 norm of the sum of all clipped sums, without noise: number of groups times clip norm.
            noise_std: Standard deviation of the noise in the sum if every site arrives.
            share_std: Standard deviation of one site's part of that noise.
            unit: Spacing of a finer grid on which the sums and their noise lie already. The new spacing is then `unit` times a
                power of two, and at least `unit`. Default: ``None``, the new spacing is any power of two.

        Raises:
            UserError: If the standard deviation of a site's part is below 64 grid steps (the rounding could then not be
                neglected), or if the bound or the standard deviations are impossible.

        >>> Grid.for_sums(bound=64, noise_std=2.0, share_std=1.0).spacing == 2**-24
        True
        """
        reach = bound + _TAIL * noise_std
        if not (0 < share_std <= noise_std and reach < math.inf):
            raise UserError(
                f"grids need 0 < share_std <= noise_std and a finite bound, got share_std = {share_std}, "
                f"noise_std = {noise_std}, bound = {bound}. [share-grid]"
            )
        digits = math.ceil(math.log2(reach / (unit or 1.0) / _HALF_RING))
        grid = cls(2.0**digits) if unit is None else cls(2.0 ** max(digits, 0) * unit, max(digits, 0))
        if (steps := share_std / grid.spacing) < LEAST_STEPS:
            raise UserError(
                f"one site's noise has a standard deviation of {share_std:g}, which is {steps:.3g} grid steps, because numbers "
                f"up to {reach:g} must fit into 32 bits. At least {LEAST_STEPS} grid steps are needed: use fewer groups, or "
                "more noise. [share-noise]"
            )
        return grid

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Rounds values to the nearest multiple of the spacing (ties to even), modulo 2^32.

        Args:
            values: Float vector with the noise already added, shape ``(P,)``.

        Returns:
            The ring elements, shape ``(P,)``, uint32.

        Raises:
            UserError: If a value is not finite, or beyond 2^62 grid steps.
        """
        encoded = np.empty(values.shape, np.uint32)
        for start in range(0, len(values), _CHUNK):
            steps = np.rint(np.divide(values[start : start + _CHUNK], self.spacing, dtype=np.float64))
            if not np.all(np.abs(steps) < 2.0**62):
                raise UserError("a site's noisy sum has values that are not finite, or far too large. [share-not-finite]")
            encoded[start : start + _CHUNK] = steps.astype(np.int64).astype(np.uint32)
        return encoded

    def encode_steps(self, steps: np.ndarray) -> np.ndarray:
        """Converts counts of finer steps (`digits`) to the nearest counts of this grid's steps, exactly (ties up), modulo 2^32.

        Args:
            steps: Integers with the noise already added, shape ``(n,)``, int64; of absolute value up to about 2^62.

        Returns:
            The ring elements, shape ``(n,)``, uint32.
        """
        return ((steps + (1 << self.digits >> 1)) >> self.digits).astype(np.uint32)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Converts ring elements to real numbers: multiples of the spacing, from -2^31 to 2^31 - 1 grid steps.

        Args:
            total: Ring elements, shape ``(P,)``, uint32.

        Returns:
            The real numbers, shape ``(P,)``, float32, rounded once.
        """
        decoded = np.empty(total.shape, np.float32)
        for start in range(0, len(total), _CHUNK):
            decoded[start : start + _CHUNK] = total[start : start + _CHUNK].view(np.int32) * np.float64(self.spacing)
        return decoded
