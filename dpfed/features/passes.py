"""Runs frozen towers so that no bit of a record's features depends on other records.

A pass is one call of a tower with a batch of inputs. All passes have the same number of inputs; a smaller batch is filled up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpfed.data.views.record_views import Tokenizer
from dpfed.errors import UserError
from dpfed.models.text_tower import FrozenTextTower

_IN_A_PASS = {"cpu": 64}  # images, or texts, in a pass on this kind of device; 256 on any other
_SHORTEST = 16  # tokens; padding is cut off so that a text keeps 16, 32, 64, ... tokens, the fewest that hold all of it

Embed = Callable[[Tensor], Tensor]


class Passes:
    """Runs a model's frozen towers in passes that all have the same number of inputs.

    Args:
        device: Device of the model.
        tokenizer: Tokenizer of a model that reads text; ``None`` for image models.

    Attributes:
        together: Number of images, or texts, in a pass. It becomes 1 if a trial on noise shows that a tower's features of an
            input depend on the other inputs of the pass.
    """

    def __init__(self, device: torch.device, tokenizer: Tokenizer | None = None) -> None:
        self._device, self._tokenizer = device, tokenizer
        self.together = _IN_A_PASS.get(device.type, 256)
        self._is_checked: set[tuple[int, ...]] = set()

    def __call__(self, embed: Embed, inputs: Tensor) -> Tensor:
        """Returns a tower's features of n inputs, ``(n, F)`` float32 on the CPU.

        If the features of an input are not all finite, its row becomes zeros.

        Args:
            embed: Tower, a function from inputs to features.
            inputs: Images or tokens, ``(n, ...)``, on the device.

        Raises:
            UserError: If a trial of the tower on noise gives features that are not finite.
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
        features = torch.cat(parts)
        # A record must not end the run, because the end would reveal the record. So its features become zeros.
        return torch.where(features.isfinite().all(1, keepdim=True), features, 0.0)

    def of_texts(self, embed: Embed, tower: nn.Module, width: int, texts: list[str]) -> Tensor:
        """Returns the features of n texts, ``(n, F_t)`` float32 on the CPU; see `__call__`.

        Args:
            embed: Function from tokens ``(n, L)`` to features ``(n, F_t)``.
            tower: Text tower that `embed` runs. If it is a `FrozenTextTower`, padding is cut off from each text, to a length
                that depends on this text alone.
            width: F_t, number of features of a text.
            texts: Texts.

        Raises:
            UserError: If a trial of the tower on noise gives features that are not finite.
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
        """Tries a tower on noise, to see whether the features of an input depend on the other inputs of its pass.

        If any bit of an input's features depends on the other inputs or on the input's position, `together` becomes 1.

        Args:
            embed: Tower, a function from inputs to features.
            like: Input ``(1, ...)`` whose shape, type and device the noise gets.

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
        features, half = embed(noise), self.together // 2
        if not bool(features.isfinite().all()):
            raise UserError("a frozen tower's features are not finite: its weights are damaged; use others. [features-finite]")
        others = torch.cat([noise[:half], noise[:half].flip(0)]).roll(half // 2, 0)
        if half and not torch.equal(features[:half], embed(others).roll(-(half // 2), 0)[:half]):
            self.together = 1
