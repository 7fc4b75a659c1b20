"""The clipped sum by jax_privacy: the same network and loss in JAX, with the same weights.

`clipped_grad` clips what one slice along the first axis gives: here a group. Images lie channels-last, which XLA likes on CPUs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax_privacy.clipping import clipped_grad

from benchmarks.peers.problem import TEMPERATURE, Problem, fixed_embeddings

Weights = list[dict[str, jax.Array]]


def jax_privacy(problem: Problem, at_once: int) -> Any:
    """jax_privacy's sum of clipped gradients, compiled for the problem's shapes; so many groups at a time."""
    weights, images = weights_of(problem), jnp.asarray(problem.groups().permute(0, 1, 2, 4, 5, 3).numpy())
    loss, fixed = (_alone if problem.group == 1 else _contrast), fixed_embeddings().numpy()

    def of_group(weights: Weights, images: jax.Array) -> jax.Array:
        embeddings = _embed(weights, images.reshape(-1, *images.shape[2:]))
        return loss(embeddings.reshape(*images.shape[:2], -1), fixed)

    own = 1 if at_once == 1 else None
    summed = clipped_grad(of_group, l2_clip_norm=problem.clip_norm, keep_batch_dim=False, microbatch_size=own)
    parts = [images] if at_once == 1 else [images[first : first + at_once] for first in range(0, len(images), at_once)]
    compiled = {len(part): jax.jit(summed).lower(weights, part).compile() for part in parts}

    def step() -> torch.Tensor:
        total = compiled[len(parts[0])](weights, parts[0])
        for part in parts[1:]:
            total = jax.tree.map(jnp.add, total, compiled[len(part)](weights, part))
        return _flat(jax.block_until_ready(total))

    return step


def weights_of(problem: Problem) -> Weights:
    """The model's weights, layer by layer: four convolutions with their normalisation, two linear layers of the head."""
    values = [p.detach().numpy() for p in problem.model().parameters()]
    layers = [
        {"w": jnp.asarray(w.transpose(2, 3, 1, 0)), "scale": jnp.asarray(scale), "shift": jnp.asarray(shift)}
        for w, scale, shift in (values[first : first + 3] for first in range(0, 12, 3))
    ]
    return [*layers, *({"w": jnp.asarray(w.T), "b": jnp.asarray(b)} for w, b in (values[12:14], values[14:16]))]


def _flat(gradients: Weights) -> torch.Tensor:
    """In the order of torch's parameters."""
    parts = [
        part
        for layer in gradients[:4]
        for part in (np.asarray(layer["w"]).transpose(3, 2, 0, 1), np.asarray(layer["scale"]), np.asarray(layer["shift"]))
    ]
    parts += [part for layer in gradients[4:] for part in (np.asarray(layer["w"]).T, np.asarray(layer["b"]))]
    return torch.from_numpy(np.concatenate([part.ravel() for part in parts]).astype(np.float64))


def _embed(weights: Weights, images: jax.Array) -> jax.Array:
    """Images ``(n, 32, 32, 3)`` -> embeddings ``(n, D)`` of unit length."""
    x = images
    for layer, stride in zip(weights[:4], (2, 2, 2, 1), strict=True):
        x = jax.lax.conv_general_dilated(
            x, layer["w"], (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(_group_norm(x) * layer["scale"] + layer["shift"])
    x = x.mean((1, 2))
    x = jax.nn.relu(x @ weights[4]["w"] + weights[4]["b"]) @ weights[5]["w"] + weights[5]["b"]
    return x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _group_norm(x: jax.Array, groups: int = 8) -> jax.Array:
    """torch's, before its scale and shift."""
    parts = x.reshape(len(x), -1, groups, x.shape[3] // groups)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    return ((parts - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)


def _contrast(embeddings: jax.Array, fixed: np.ndarray) -> jax.Array:
    """dpfed's contrast of two views, ``(S, 2, D)``, in both directions."""
    first, second = embeddings[:, 0], embeddings[:, 1]
    similarity = first @ second.T / TEMPERATURE
    found = [jax.nn.logsumexp(logits, axis=1) - jnp.diagonal(logits) for logits in (similarity, similarity.T)]
    return found[0].sum() + found[1].sum()


def _alone(embeddings: jax.Array, fixed: np.ndarray) -> jax.Array:
    """The loss of one record, ``(1, 1, D)``."""
    logits = embeddings[:, 0] @ fixed.T / TEMPERATURE
    return (jax.nn.logsumexp(logits, axis=1) - logits[:, 0]).sum()
