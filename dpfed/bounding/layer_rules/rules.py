"""Contains the table `RULES`: the rule for each torch function that a layer may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfed.bounding.layer_rules.attention import attention
from dpfed.bounding.layer_rules.broadcast import add, add_product, expand, multiply, view
from dpfed.bounding.layer_rules.convolution import convolution
from dpfed.bounding.layer_rules.embedding import embedding
from dpfed.bounding.layer_rules.linear import linear, matmul
from dpfed.bounding.layer_rules.normalisation import batch_norm, group_norm, layer_norm, norm_relu
from dpfed.models import norm

# A rule is called with the recorder, the function, and the function's arguments. It returns NotImplemented if it does not cover
# these arguments.
RULES: dict[Callable, Callable[..., Any]] = {
    F.linear: linear,
    F.conv2d: convolution,
    F.group_norm: group_norm,
    norm.norm_relu: norm_relu,
    F.layer_norm: layer_norm,
    F.embedding: embedding,
    F.multi_head_attention_forward: attention,
    torch.matmul: matmul,
    Tensor.matmul: matmul,
    Tensor.__matmul__: matmul,
    Tensor.add: add,
    Tensor.mul: multiply,
    torch.addcmul: add_product,
    F.batch_norm: batch_norm,
    Tensor.expand: expand,
    Tensor.__getitem__: view,
    Tensor.view: view,
    Tensor.reshape: view,
    Tensor.reshape_as: view,
    Tensor.unsqueeze: view,
}
