"""Computes the features of records by frozen towers, each record's from that record alone."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.data.record_set import RecordSet
from dpfed.data.views.batches import ReadAhead
from dpfed.data.views.record_views import RecordViews, Tokenizer
from dpfed.errors import UserError
from dpfed.features.cache import Features, Shard
from dpfed.features.towers import frozen_towers
from dpfed.models.contract import method_of
from dpfed.models.text_tower import FrozenTextTower
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress, Silent

_VERSION = 1
_IN_A_PASS = {"cpu": 64}  # images, or texts; elsewhere 256
_SHORTEST = 16  # tokens: texts are cut to 16, 32, 64, ... places, each by its own length
# Views are drawn by the record's key and a constant that anyone may know: no promise rests on them.
_VIEWS = Randomness.from_seed(0)


@dataclass(frozen=True)
class FeatureCache:
    """Features of records, computed once and kept: what is in the folder already is not computed again.

    Attributes:
        folder: inside which they are kept, in a folder named by what they depend on; ``None``: a temporary one, which goes with
            the features.
        progress: sees how far it is.
    """

    folder: Path | None = None
    progress: Progress = field(default_factory=Silent)

    def features(self, model: nn.Module, views: RecordViews, store: RecordSet, rows: np.ndarray, count: int = 0) -> Features:
        """The features of some records.

        Args:
            model: whose towers are frozen.
            views: how records become what the model reads.
            store: the records.
            rows: ``(n,)`` int64 rows of the store.
            count: V, random views of each image, by the record's own key: the same in every run; 0: the plain image alone.

        Raises:
            UserError: if a tower is trained, or its features of noise are not finite. Those of a record that are not become
                zeros.
        """
        extraction = _Extraction(model, views, store, count)
        temporary = None if self.folder is not None else tempfile.TemporaryDirectory(prefix="dpfed-features-")
        features = Features(Path(self.folder or temporary.name) / extraction.key(rows), rows, temporary)  # type: ignore[union-attr]
        advance = self.progress.stage("features of frozen towers", len(rows))
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                features.complete(extraction, advance)
        finally:
            model.train(was_training)
        return features


def features_key(model: nn.Module, views: RecordViews, store: RecordSet, rows: np.ndarray, count: int = 0) -> str:
    """Names everything that the features of some records depend on; see `FeatureCache.features`."""
    return _Extraction(model, views, store, count).key(rows)


class _Extraction:
    """Rows of a store -> a shard of features."""

    def __init__(self, model: nn.Module, views: RecordViews, store: RecordSet, count: int) -> None:
        self._model, self._views, self._store, self._count = model, views, store, count
        self._device = next(model.parameters()).device
        self._towers = frozen_towers(model)
        self._read = ReadAhead(functools.partial(views.read, store))
        self._together = _IN_A_PASS.get(self._device.type, 256)
        self._is_checked: set[tuple[int, ...]] = set()

    def key(self, rows: np.ndarray) -> str:
        """Names everything that the features depend on."""
        views, store, digest = self._views, self._store, hashlib.blake2b(digest_size=16)
        shape = list(views.read(store, rows[:1]).shape[1:]) if len(rows) else []
        said = [_VERSION, store.contents, asdict(views.preprocessing), shape, self._count, self._towers.text_width]
        said += [views.images.config.model_dump(mode="json")] if self._count else []
        digest.update(json.dumps(said, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(store.keys[rows]).tobytes())
        for tower in (self._towers.image, self._towers.text):
            for name, tensor in tower.state_dict().items() if tower is not None else ():
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def __call__(self, rows: np.ndarray, progress: Callable[[int], None]) -> Shard:
        """The features of a shard's records.

        Args:
            rows: ``(b,)`` of the store.
            progress: learns how many are done.
        """
        batches = [rows[first : first + self._together] for first in range(0, len(rows), self._together)]
        self._read.prefetch(batches)
        parts = []
        for own in batches:
            parts.append(self._of_images(own))
            progress(sum(map(len, parts)))
        image = torch.cat(parts)
        if self._towers.text is None or self._views.tokenizer is None:
            return Shard(image)
        captions = self._store.captions(rows)
        counts = torch.tensor([len(own) for own in captions])
        each = [text for own in captions for text in own]
        number = {text: index for index, text in enumerate(dict.fromkeys(each))}  # equal captions are embedded once
        text = self._of_texts(list(number), self._views.tokenizer)[[number[text] for text in each]]
        return Shard(image, text, torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]))

    def _of_images(self, rows: np.ndarray) -> Tensor:
        """``(b, max(V, 1), F)`` float32 on the CPU."""
        of_images, device = self._views.images, self._device
        images, embed = self._read(rows).to(device), method_of(self._model, "features")
        if self._count:
            shape = (len(rows), self._count, of_images.columns)
            drawn = _VIEWS.per_record("views", 0, self._store.keys[rows], shape[1] * shape[2]).astype(np.float32)
            views = of_images(images, torch.from_numpy(drawn).view(shape).to(device))
        else:
            views = of_images.plain(images)[:, None]
        return torch.stack([self._in_passes(embed, views[:, v]) for v in range(views.shape[1])], 1)

    def _of_texts(self, texts: list[str], tokenizer: Tokenizer) -> Tensor:
        """``(k, F_t)`` float32 on the CPU."""
        tokens, embed = tokenizer(texts), method_of(self._model, "text_features")
        lengths, tower = torch.full((len(tokens),), tokens.shape[1]), self._towers.text
        if isinstance(tower, FrozenTextTower):  # cut by the text's own length, so each is a function of that text
            last = ((tokens != tower.spec.padding) * torch.arange(1, tokens.shape[1] + 1)).amax(1)
            lengths = 2 ** last.clamp(min=_SHORTEST).double().log2().ceil().long()
            lengths = lengths.clamp(max=tokens.shape[1])
        result = torch.empty(len(tokens), self._towers.text_width)
        for length in lengths.unique().tolist():
            chosen = torch.nonzero(lengths == length)[:, 0]
            result[chosen] = self._in_passes(embed, tokens[chosen, :length].to(self._device))
        return result

    def _in_passes(self, embed: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Embeds in passes of one shape, where a record's place and its neighbours change no bit of its features."""
        if inputs.shape[1:] not in self._is_checked:
            self._check(embed, inputs[:1])
            self._is_checked.add(tuple(inputs.shape[1:]))
        parts = []
        for part in inputs.split(self._together):
            missing = self._together - len(part)
            # In new memory: some products of a few rows go by where their rows begin.
            full = torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part.clone()
            parts.append(embed(full)[: len(part)].float().cpu())
        found = torch.cat(parts)
        # One record must not end a run, for everyone would see that: it counts as nothing.
        return torch.where(found.isfinite().all(1, keepdim=True), found, 0.0)

    def _check(self, embed: Callable[[Tensor], Tensor], like: Tensor) -> None:
        """Tries the tower on noise. Where a pass does not keep records apart, bit by bit, each gets a pass of its own.

        Raises:
            UserError: if the features of noise are not finite.
        """
        generator = torch.Generator().manual_seed(0)
        shape = (self._together, *like.shape[1:])
        if like.is_floating_point():
            noise = torch.randn(shape, generator=generator)
        else:
            noise = torch.randint(1, self._views.tokenizer.vocabulary, shape, generator=generator)  # type: ignore[union-attr]
        noise = noise.to(like)
        found, half = embed(noise), self._together // 2
        if not bool(found.isfinite().all()):
            raise UserError("a frozen tower's features are not finite: its weights are damaged; use others. [features-finite]")
        others = torch.cat([noise[:half], noise[:half].flip(0)]).roll(half // 2, 0)
        if half and not torch.equal(found[:half], embed(others).roll(-(half // 2), 0)[:half]):
            self._together = 1
