"""What a run in closed form (`Method.closed_form`) has in the place of trained towers: heads, and features as views."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.config import Config
from dpfed.data.store.records import RecordStore
from dpfed.data.views.images import ImageViews
from dpfed.errors import UserError
from dpfed.models.building import Tokenizer, image_size
from dpfed.models.contract import method_of
from dpfed.models.moment_heads import MomentNoise
from dpfed.models.moment_layout import MomentLayout, dimensions_for
from dpfed.models.moments import MomentHeads, feature_widths, give_heads, keep_towers
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness

# Views are drawn by the record's key and a constant that anyone may know: no promise rests on them.
_VIEWS = Randomness.from_seed(0)


def is_aligned(config: Config) -> bool:
    """Whether features of a pair are alike before anything is learnt: views of one image, or towers that were trained together."""
    return config.model.kind != "image-text" or config.model.start is not None


def add_moment_heads(
    model: nn.Module, config: Config, plan: PrivacyPlan, noise_std: float, tokenizer: Tokenizer | None
) -> None:
    """Freezes the towers of a model, and puts heads of moments behind them.

    Args:
        model: of `dpfed.models.building.build_model`, on the CPU.
        config: of the run.
        plan: of the run.
        noise_std: of each number of the noisy sums.
        tokenizer: of models that read text.

    Raises:
        UserError: for fewer records, or narrower towers, than dimensions.
    """
    aligned, given = is_aligned(config), plan.options["dimensions"]
    keep_towers(model, aligned)
    widths = feature_widths(model, image_size(config), tokenizer)
    if given > min(*widths, plan.records):
        raise UserError(
            f"bounding.options.dimensions = {given} is more than there is: the towers give {' and '.join(map(str, widths))} "
            f"numbers, and there are {plan.records:,} training {plan.protected}s. Lower it, or leave it out."
        )
    k = given or dimensions_for(plan.records, plan.noise_multiplier, widths)
    if aligned and not given:
        k = min(*widths, plan.records)  # what towers have in common already is not thrown away
    layout = MomentLayout(k, len(widths), plan.options["mean_share"], plan.options["cross_share"])
    give_heads(model, MomentHeads(layout, MomentNoise(plan.records, noise_std), widths, aligned))


class FeatureViews:
    """Features of frozen towers, called as a `ViewMaker` is; each record's are computed once, by a pass of its own.

    Args:
        model: whose towers are frozen.
        store: the records.
        read: their images, indices ``(n,)`` -> uint8 ``(n, 3, size, size)``.
        views: random image views.
        count: V, random views of each image; 0: the image as it is.
        tokenizer: for models that read text.
    """

    def __init__(
        self,
        model: nn.Module,
        store: RecordStore,
        read: Callable[[np.ndarray], Tensor],
        views: ImageViews,
        count: int,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._model, self._store, self._read, self._views = model, store, read, views
        self._count, self._tokenizer = count, tokenizer
        self._known: dict[int, list[Tensor]] = {}

    def prefetch(self, batches: Iterable[np.ndarray], device: torch.device) -> None:
        """See `ViewMaker.prefetch`: nothing is read ahead."""

    def __call__(self, indices: np.ndarray, randomness: Randomness, step: int, device: torch.device) -> dict[str, Tensor]:
        """Features of some records.

        Returns:
            ``{"image": (n, V, F)[, "text": (n, 1, F_t)]}``.
        """
        was_training = self._model.training
        self._model.eval()
        with torch.inference_mode():
            for row in indices.tolist():
                if row not in self._known:
                    self._known[row] = self._of(np.array([row]), device)
        self._model.train(was_training)
        sides = zip(("image", "text"), zip(*(self._known[row] for row in indices.tolist()), strict=True), strict=False)
        return {side: torch.stack(own).to(device) for side, own in sides}

    def _of(self, row: np.ndarray, device: torch.device) -> list[Tensor]:
        images = self._read(row).to(device)
        if self._count:
            shape = (1, self._count, self._views.columns)
            drawn = _VIEWS.per_record("views", 0, self._store.keys[row], shape[1] * shape[2]).astype(np.float32)
            views = self._views(images, torch.from_numpy(drawn).view(shape).to(device))[0]
        else:
            views = self._views.plain(images)
        embed = method_of(self._model, "features")
        found = [torch.cat([embed(view[None]) for view in views]).cpu()]
        if self._tokenizer is not None:
            embed = method_of(self._model, "text_features")
            own = [embed(self._tokenizer([caption]).to(device)) for caption in self._store.captions(row)[0]]
            found.append(torch.cat(own).mean(0, keepdim=True).cpu())
        return found
