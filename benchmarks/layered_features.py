"""Features of several layers of both towers, and of several prompts of a caption, for `benchmarks.moment_few`.

The features are computed once, some records at a time, and stay in a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dpfed.data.store.records import RecordStore
from dpfed.models.moments import keep_towers
from dpfed.runs.build import Parts

STAGES = (2, 3, 4, 5, 6)  # of EfficientNet-Lite0, counted from 0; their features are averages over places
LAST = "last"  # the tower's own features
PROMPTS = ("{}", "a picture of {}", "an icon of {}", "this is about {}")
_TOGETHER, _PASS = 600, 64  # records of a file, and of a pass


def layered(
    parts: Parts, store: RecordStore, rows: np.ndarray, folder: Path, second: nn.Module | None = None
) -> dict[str, Tensor]:
    """Returns the features of several layers for some records.

    Args:
        parts: Towers and views.
        store: Records; only the first caption of each is used.
        rows: Indices of the records, ``(n,)``.
        folder: Folder that keeps the features.
        second: Second image tower, which takes the same inputs; ``None``: there is none.

    Returns:
        Features, float16: ``image.last``, ``image.2`` and so on, ``(n, F)``; ``image.second``, ``(n, F)``, if there is a second
        image tower; ``text.layers``, every layer, ``(n, 7, F)``; and ``text.prompts``, the last layer for every prompt,
        ``(n, 4, F)``.
    """
    loaded = []
    texts: dict[str, Tensor] = {}
    for first in range(0, len(rows), _TOGETHER):
        chunk = rows[first : first + _TOGETHER]
        path = folder / f"{store.path.name}-{store.contents[:8]}-{first}-{chunk[0]}-{len(chunk)}.safetensors"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            keep_towers(parts.model, aligned=False)
            parts.model.eval()
            with torch.inference_mode():
                made = _images(parts, store, chunk) | _texts(parts, [captions[0] for captions in store.captions(chunk)], texts)
            save_file({name: numbers.half().contiguous() for name, numbers in made.items()}, path)
        loaded.append(load_file(path))
        if second is not None:
            path = path.with_name(f"second-{path.name}")
            if not path.exists():
                with torch.inference_mode():
                    parts_of = [
                        second(parts.views.images.plain(parts.views.read(store, chunk[start : start + _PASS])))
                        for start in range(0, len(chunk), _PASS)
                    ]
                save_file({"image.second": torch.cat(parts_of).half()}, path)
            loaded[-1] |= load_file(path)
    return {name: torch.cat([part[name] for part in loaded]) for name in loaded[0]}


def unit(features: Tensor) -> Tensor:
    """Scales features to unit length, float64."""
    return F.normalize(features.double(), dim=-1)


def _images(parts: Parts, store: RecordStore, rows: np.ndarray) -> dict[str, Tensor]:
    net: Any = next(module for module in parts.model.modules() if hasattr(module, "conv_stem"))
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, given, made: seen.__setitem__(name, made.mean((2, 3)))

    hooks = [net.blocks[stage].register_forward_hook(keep(f"image.{stage}")) for stage in STAGES]
    model: Any = parts.model
    made: dict[str, list[Tensor]] = {}
    for first in range(0, len(rows), _PASS):
        pictures = parts.views.read(store, rows[first : first + _PASS])
        seen[f"image.{LAST}"] = model.features(parts.views.images.plain(pictures))
        for name, features in seen.items():
            made.setdefault(name, []).append(features)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(features) for name, features in made.items()}


def _texts(parts: Parts, captions: list[str], known: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns ``text.layers`` and ``text.prompts`` of captions; adds each new caption's features ``(4, 7, F)`` to `known`."""
    tower: Any = parts.model.text_encoder.backbone
    different = [caption for caption in dict.fromkeys(captions) if caption not in known]
    if different:
        states = [_layers(tower, parts.views.tokenizer, [prompt.format(text) for text in different]) for prompt in PROMPTS]
        known.update(zip(different, torch.stack(states, 1), strict=True))
    features = torch.stack([known[caption] for caption in captions])
    return {"text.layers": features[:, 0], "text.prompts": features[:, :, -1]}


def _layers(tower: nn.Module, tokenizer: Any, texts: list[str]) -> Tensor:
    """Returns the mean of the tokens' states after each layer, for each text, ``(n, layers, F)``; layer 0 is the embedding."""
    text_tower: Any = tower
    made = []
    for first in range(0, len(texts), _PASS):
        tokens = tokenizer(texts[first : first + _PASS])
        last = int(((tokens != text_tower.spec.padding) * torch.arange(1, tokens.shape[1] + 1)).amax().clamp(min=2))
        tokens = tokens[:, :last]
        real = (tokens != text_tower.spec.padding).long()
        states = text_tower.net(input_ids=tokens, attention_mask=real, output_hidden_states=True).hidden_states
        weight = real.float() / real.sum(1, keepdim=True)
        made.append(torch.stack([(weight[:, None] @ state).squeeze(1) for state in states], 1))
    return torch.cat(made)
