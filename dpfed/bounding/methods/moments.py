"""Defines private moments: linear heads on frozen towers, computed in closed form from noisy moments of the towers' features.

Step 0 releases the mean of each tower's features. Step 1 subtracts these means, and releases the cross-moment of image and text
and each tower's auto-moment. Every record takes part in both. There is no sampling and no training, and the towers embed each
record on its own.

**A record's contribution.** A tower's features f are normalised to unit length; a public point o (the mean of public features,
or 0) is subtracted, and the result multiplied by a public matrix P, usually a projection to k dimensions: ``d = P (f / |f| -
o)``. This is normalised to ``x = d / max(|d|, |P| / 10^4)``, so |x| <= 1, also for features near o. P and o are fixed before
any record is read. The features of several captions are averaged first; several views of an image give several vectors x. Step
0 takes their mean m for each of n towers; n = 2 for image and text, and 1 for images alone. Step 1 subtracts a released centre
c, ``u = (x - c) / max(|x - c|, 10^-4)``, so |u| <= 1. It takes the mean M of all products ``u v'`` of an image's vector u with
a text's vector v (of images alone: of two different views), and for each tower the mean A of all ``u u'``. Features that are
zero or not finite give the vector 0.

**Lemma.** Adding one record moves the sum of step t by at most sqrt(w_t) in the L2 norm, for any centre, where w_0 = a and
w_1 = 1 - a. (The fractions a, for the means, and b, for M, are constants of this file.) Step 0: each m is a mean of vectors of
norm 1 at most, and is scaled by sqrt(a / n): together sqrt(a). Step 1: a product of two vectors of norm 1 at most has Frobenius
norm 1 at most, and so has a mean of such products. M is scaled by sqrt(b), each of n matrices A by sqrt((1 - a - b) / n):
together sqrt(b + (1 - a - b)) = sqrt(1 - a). A symmetric matrix is represented by its upper triangle, with the entries off the
diagonal times sqrt(2), which has the same norm. The bound is tight: features of unit length reach it. ∎

**Both steps are one Gaussian mechanism** of sensitivity 1 and noise sigma. Noise of the same standard deviation sigma is added
to each number of both sums, and the second sum depends on the first release (by c). Gaussian releases with ratios of
sensitivity to noise mu_0 and mu_1, the second chosen adaptively, are together dominated by one with ratio sqrt(mu_0^2 + mu_1^2)
(Dong, Roth and Su 2022, corollary 3.3). Here this is sqrt(a + 1 - a) / sigma = 1 / sigma. A single step costs its own fraction
of 1 / sigma^2, a or 1 - a; accounting takes the larger one (`Mechanism.poisson_steps`). Neighbours have one record more or
less, and there is no sampling.

**In floating point.** A record's features are computed in a pass of its own, or in a pass of public shape in which other
records change no bit (`dpfed.features`). The remaining steps use integers, whose sums float64 holds exactly: the features
divided by their norm, o, the projection and its norm, and the centre and the distance from it are integers in steps of 2^-20 or
less, and each is divided or rounded separately. So a record's vector is a function of the record, bit by bit. Unit vectors are
then truncated to steps of 2^-g (g is `bits` of the layout), which increases no norm, and products of them are integers in steps
of 2^-2g. They are added up as integers, and multiplied by integers that are no larger than R times the scales above (R is the
radius, see `_radius`). So the lemma, times the clip norm C, holds for the computed numbers: for any number N of records, with
any number of workers (`dpfed.bounding.pair_moments`, `dpfed.models.moment_layout`, docs/guarantee.md).

Units: the contributions of a unit's records are averaged, so a unit moves the sum as one record does.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from dpfed.errors import UserError
from dpfed.privacy.method import Method, MethodInputs, poisson
from dpfed.privacy.parameters import MechanismParameters
from dpfed.schema.section import Section

# a, then b for a random and b for a public basis: close to the best values at every epsilon (docs/moments.md)
MEAN_SHARE, CROSS_SHARE, CROSS_SHARE_OF_PUBLIC = 0.05, 0.8, 0.9
_VIEWS = 8  # random views of an image without captions
BASIS_ROWS = 256  # rows of a public basis: more dimensions add more noise than signal


class _Options(Section):
    dimensions: int = Field(
        0,
        ge=0,
        le=4096,
        description="k: number of dimensions after the projection of the features; 0: chosen from the number of records and "
        "sigma, or all dimensions for towers that are aligned already",
    )
    views: int | None = Field(
        None,
        ge=0,
        le=64,
        description="number of random views of an image; 0: the image as it is; default: 0 with captions, 8 without",
    )
    basis: Literal["generated", "store", "random"] | None = Field(
        None,
        description="source of the projection: 'generated', public pictures and words that dpfed has (default); 'store', the "
        "records of public.path; or 'random', random numbers (default without captions, and for towers that are aligned "
        "already)",
    )
    layers: Literal["last", "several"] | None = Field(
        None,
        description="which layers of the towers give the features: 'last'; or 'several' (default with a public basis), which "
        "adds the last two stages of a convolutional tower, and the middle layer of a text tower",
    )
    basis_digest: str | None = Field(None, description="fingerprint of the basis; the run writes this key itself")


def _numbers(inputs: MethodInputs) -> dict[str, Any]:
    options: _Options = inputs.options
    views = options.views if options.views is not None else 0 if inputs.reads_text else _VIEWS
    if not inputs.reads_text and views < 2:
        raise UserError(
            f"without captions, an image needs at least two views, got bounding.options.views = {views}: set it to 2 or more. "
            "[moments-views]"
        )
    basis = options.basis or ("random" if inputs.aligned else "generated")
    share = CROSS_SHARE if basis == "random" else CROSS_SHARE_OF_PUBLIC
    return {"dimensions": options.dimensions, "views": views, "mean_share": MEAN_SHARE, "cross_share": share}


def _radius(given: MechanismParameters) -> float:
    """Returns R, the largest norm of a record's contributions to both sums together, in grid steps.

    It is 2^46, or less if sum and noise would otherwise not fit into 64 bits.

    With 2^46, unit vectors of images and texts have steps of 2^-19.
    """
    of_sum, of_noise = 60 - math.log2(given.records), 56 - math.log2(given.noise_multiplier)
    return 2.0 ** math.floor(min(46, of_sum, of_noise))


METHOD = Method(
    name="moments",
    title="private moments",
    claim="Towers are frozen. The means of their features are released with noise, then the means of products of these "
    "features (moments). Linear heads are computed from both in closed form. A record adds one vector to each of the two sums. "
    "The norm of the first vector is at most sqrt(0.05), that of the second sqrt(0.95); the root of the sum of their squares "
    "is the sensitivity, 1.",
    sensitivity=lambda given: given.clip_norm,
    spread=lambda given: given.records,
    radius=_radius,
    divisor=lambda given: given.records,
    mechanism=lambda given: poisson(given, (given.options["mean_share"], 1 - given.options["mean_share"])),
    closed_form=True,
    singleton_groups=True,
    units=True,
    proven_in_floats=True,
    options=_Options,
    public_parameters=_numbers,
)
