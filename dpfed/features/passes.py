"""Runs frozen towers in passes of one shape, so that no bit of a record's features depends on other records of the pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpfed.data.views.record_views import Tokenizer
from dpfed.errors import UserError
from dpfed.models.text_tower import FrozenTextTower

_IN_A_PASS = {"cpu": 64}  # images, or texts; elsewhere 256
_SHORTEST = 16  # tokens: texts are cut to 16, 32, 64, ... places, each by its own length

Embed = Callable[[Tensor], Tensor]


class Passes:
    """Passes of a model on a device.

    Args:
        device: The model's.
        tokenizer: Tokenizer of a model that reads text.

    Attributes:
        together: Number of images, or texts, of a pass.
    """

    def __init__(self, device: torch.device, tokenizer: Tokenizer | None = None) -> None:
        self._device, self._tokenizer = device, tokenizer
        self.together = _IN_A_PASS.get(device.type, 256)
        self._is_checked: set[tuple[int, ...]] = set()

    def __call__(self, embed: Embed, inputs: Tensor) -> Tensor:
        """Features ``(n, F)`` float32 on the CPU; zeros for those that are not finite.

        Args:
            embed: The tower.
            inputs: ``(n, ...)`` on the device.

        Raises:
            UserError: If the tower's features of noise are not finite.
        """
        if inputs.shape[1:] not in self._is_checked:
            self._check(embed, inputs[:1])
            self._is_checked.add(tuple(inputs.shape[1:]))
        parts = []
        for part in inputs.split(self.together):
            missing = self.together - len(part)
            # The copy aligns memory: the result of some products of a few rows depends on their address.
            full = torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part.clone()
            parts.append(embed(full)[: len(part)].float().cpu())
        found = torch.cat(parts)
        # A record must not end the run, because that would reveal it: its features count as zeros.
        return torch.where(found.isfinite().all(1, keepdim=True), found, 0.0)

    def of_texts(self, embed: Embed, tower: nn.Module, width: int, texts: list[str]) -> Tensor:
        """Features ``(n, F_t)`` of texts.

        Args:
            embed: Tokens ``(n, L)`` -> features.
            tower: The text tower; texts of a pretrained one are cut by their own length, so each is a function of that text.
            width: F_t.
            texts: N of them.
        """
        assert self._tokenizer is not None
        tokens = self._tokenizer(texts)
        lengths = torch.full((len(tokens),), tokens.shape[1])
        if isinstance(tower, FrozenTextTower):
            last = ((tokens != tower.spec.padding) * torch.arange(1, tokens.shape[1] + 1)).amax(1)
            lengths = 2 ** last.clamp(min=_SHORTEST).double().log2().ceil().long()
            lengths = lengths.clamp(max=tokens.shape[1])
        result = torch.empty(len(tokens), width)
        for length in lengths.unique().tolist():
            chosen = torch.nonzero(lengths == length)[:, 0]
            result[chosen] = self(embed, tokens[chosen, :length].to(self._device))
        return result

    def _check(self, embed: Embed, like: Tensor) -> None:
        """Tries the tower on noise. Where a pass does not keep records apart, bit by bit, each gets a pass of its own.

        Raises:
            UserError: If the features of noise are not finite.
        """
        generator = torch.Generator().manual_seed(0)
        shape = (self.together, *like.shape[1:])
        if like.is_floating_point():
            noise = torch.randn(shape, generator=generator)
        else:
            noise = torch.randint(1, self._tokenizer.vocabulary, shape, generator=generator)  # type: ignore[union-attr]
        noise = noise.to(like)
        found, half = embed(noise), self.together // 2
        if not bool(found.isfinite().all()):
            raise UserError("a frozen tower's features are not finite: its weights are damaged; use others. [features-finite]")
        others = torch.cat([noise[:half], noise[:half].flip(0)]).roll(half // 2, 0)
        if half and not torch.equal(found[:half], embed(others).roll(-(half // 2), 0)[:half]):
            self.together = 1
