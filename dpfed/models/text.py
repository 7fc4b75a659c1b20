"""dpfed's own text tower: a small pre-norm transformer over token ids."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

_EXPANSION = 2  # relative hidden width of the feed-forward layers; 4 is usual, but each further parameter gets noise, too


class TextTransformer(nn.Module):
    """Transformer that maps captions to vectors.

    It has no dropout, so a group's gradient is a function of its records and views alone. It has few operations, because
    private training runs it on a handful of captions at a time, where starting an operation costs more than computing it.

    Args:
        vocabulary: Number of different tokens; token 0 is padding.
        width: Number of dimensions of a token's vector.
        layers: Number of transformer blocks.
        heads: Number of attention heads, a divisor of `width`.
        context: Number of tokens of the longest caption.
        out: Number of dimensions of a caption's vector.

    Raises:
        ValueError: If `heads` does not divide `width`.
    """

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, context: int, out: int) -> None:
        super().__init__()
        self.features_dim = out
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, out, bias=False)
        # Unit variance, where 0.02 is usual: small embeddings in front of LayerNorm have gradients 50 times as large, and would
        # use up the clip norm of the whole group.
        nn.init.normal_(self.token.weight, std=1.0)
        nn.init.normal_(self.position, std=0.3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps tokens ``(n, L)`` int64, L up to `context`, to ``(n, out)``, the projected mean over the tokens.

        A caption of padding only is read as one padding token, so that its result is finite. The computation is always in
        float32: the tower is small, and the batched backward pass of torch.func confuses types under autocast.
        """
        with torch.autocast(tokens.device.type, enabled=False):
            return self._read(tokens)

    def _read(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        first = torch.arange(length, device=tokens.device) == 0
        real = (tokens != 0) | first
        x = (self.token(tokens) + self.position[:length]).flatten(0, 1)
        mask = real[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        weight = real.to(x.dtype)
        weight = weight / weight.sum(1, keepdim=True)
        pooled = (weight[:, None, :] @ x.view(*tokens.shape, -1)).squeeze(1)
        return self.project(self.norm(pooled))


class _Block(nn.Module):
    """Attention and feed-forward without biases: LayerNorm has a bias, and each further tensor must be clipped and added up."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width of the text encoder ({width}) must be a multiple of its heads ({heads})")
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.expand = nn.Linear(width, _EXPANSION * width, bias=False)
        self.contract = nn.Linear(_EXPANSION * width, width, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Maps the tokens of n captions, ``(n L, width)``, to the same shape, with a bool key mask ``(n, 1, 1, L)``."""
        qkv = self.qkv(self.norm1(x)).view(len(mask), -1, 3, self.heads, x.shape[1] // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.mT).div(q.shape[-1] ** 0.5).masked_fill(~mask, -math.inf)
        attended = scores.softmax(-1) @ v  # a fused kernel would have no batching rule on CPUs
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.contract(F.relu(self.expand(self.norm2(x))))
