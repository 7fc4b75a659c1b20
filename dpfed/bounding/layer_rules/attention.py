"""Computes packed attention in parts, because ``torch.nn.MultiheadAttention`` computes its projections inside one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from dpfed.bounding.layer_rules.linear import linear

if TYPE_CHECKING:
    from dpfed.bounding.layer_rules.recorder import Recorder


def attention(
    recorder: Recorder,
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    in_weight: Tensor | None,
    in_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero: bool,
    dropout: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **others: Any,
) -> Any:
    """Computes and records self-attention, in place of ``F.multi_head_attention_forward`` on ``(L, n k, E)``.

    L is the number of tokens, and E the number of dimensions. There are n records with k rows each.

    Returns:
        The output ``(L, n k, E)``, and ``None`` in place of attention weights. The result is ``NotImplemented`` if query, key
        and value are not one tensor, if the call asks for the weights (``need_weights=True``, torch's default), or if it has a
        boolean mask, a padding mask, extra keys or values (``bias_k``, ``bias_v``, ``add_zero``), separate projection weights,
        or any of `others`.
    """
    rare = (bias_k, bias_v, add_zero or None, key_padding_mask, use_separate_proj_weight or None, *others.values())
    hiding = attn_mask is not None and not attn_mask.is_floating_point()  # torch.nn.MultiheadAttention passes an additive mask
    if in_weight is None or need_weights or hiding or any(value is not None for value in rare):
        return NotImplemented
    if query is not key or key is not value:
        return NotImplemented
    x = query.transpose(0, 1)  # other rules expect the rows first
    qkv = linear(recorder, F.linear, x, in_weight, in_bias)
    q, k, v = qkv.unflatten(-1, (3, heads, width // heads)).permute(2, 0, 3, 1, 4).unbind(0)
    if attn_mask is not None and attn_mask.dim() == 3:  # (n k heads, L, L)
        attn_mask = attn_mask.unflatten(0, (len(x), heads))
    causal = is_causal and attn_mask is None
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout if training else 0.0, causal)
    out = linear(recorder, F.linear, attended.transpose(1, 2).flatten(2), out_weight, out_bias)
    return out.transpose(0, 1), None
