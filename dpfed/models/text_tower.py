"""A pretrained text tower, frozen, with a linear head of its own (``model.text``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.models.blueprints import quiet
from dpfed.models.text_blueprints import LENGTH, MODULES, POOLING, TextBlueprint
from dpfed.models.weight_files import words

_SENTENCE_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"))


class FrozenTextTower(nn.Module):
    """A tower from texts to vectors that is never trained. It stays in evaluation mode, so it draws no random numbers.

    Args:
        net: Model of transformers.
        spec: Blueprint of the tower.
    """

    net: Any  # model of transformers

    def __init__(self, net: nn.Module, spec: TextBlueprint) -> None:
        super().__init__()
        self.net, self.spec, self.layers = net, spec, 1
        for module in net.modules():
            if isinstance(module, nn.Dropout):  # engines would pass one group at a time if dropout could draw
                module.p = 0.0
        self.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> FrozenTextTower:
        """Keeps the tower in evaluation mode, whatever `mode` is."""
        return super().train(False)

    def requires_grad_(self, requires_grad: bool = True) -> FrozenTextTower:
        """Keeps the tower frozen, whatever `requires_grad` is."""
        return super().requires_grad_(False)

    @property
    def width(self) -> int:
        """F, number of features: of all layers together, if several are concatenated."""
        return self.spec.width * self.layers

    def give_several_layers(self) -> None:
        """Lets `forward` return the features of the last and the middle layer, each scaled to unit length and concatenated."""
        self.layers = 2

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens ``(n, L)`` int64 to features ``(n, F)`` float32.

        A text of padding only is read as one padding token.
        """
        first = torch.arange(tokens.shape[1], device=tokens.device) == 0
        real = ((tokens != self.spec.padding) | first).long()
        with torch.autocast(tokens.device.type, enabled=False):
            output = self.net(input_ids=tokens, attention_mask=real, output_hidden_states=self.layers > 1)
        if self.layers == 1:
            return self._pooled(output.last_hidden_state, real)
        middle = output.hidden_states[len(output.hidden_states) // 2]  # hidden_states[0] are the token embeddings
        pieces = [self._pooled(states, real) for states in (output.last_hidden_state, middle)]
        return torch.cat([F.normalize(piece, dim=1) for piece in pieces], dim=1)

    def _pooled(self, states: Tensor, real: Tensor) -> Tensor:
        if self.spec.pooling == "cls":
            return states[:, 0]
        weight = real.to(states.dtype) / real.sum(1, keepdim=True)
        return (weight[:, None, :] @ states).squeeze(1)


class TextTower(nn.Module):
    """Frozen text tower with a trainable head.

    Args:
        backbone: Tower from tokens ``(n, L)`` to features ``(n, F)``.
        head: Head from features to ``(n, D)``.
    """

    def __init__(self, backbone: FrozenTextTower, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens ``(n, L)`` int64 to ``(n, D)``, not of unit length."""
        return self.head(self.backbone(tokens))


def build_text_tower(spec: TextBlueprint, out: int, load_weights: bool = True) -> TextTower:
    """Builds a pretrained text tower with a linear head. The head's weights are drawn from torch's global generator.

    Args:
        spec: Blueprint of the tower.
        out: D, dimensions of the head's output.
        load_weights: Whether to read the weights. If not, they are random, for a caller that loads a checkpoint over them.

    Raises:
        UserError: If transformers cannot build the tower, or its weights do not fit.
    """
    with torch.random.fork_rng(devices=[]), quiet():
        try:
            net = _load(spec, load_weights)
        except UserError:
            raise
        except Exception as error:  # a bad description or file of weights can make transformers raise anything
            raise UserError(f"model.text: the tower in {spec.folder} cannot be built: {words(error)}. [text-build]") from error
    return TextTower(FrozenTextTower(net, spec), nn.Linear(spec.width, out, bias=False))


def _load(spec: TextBlueprint, load_weights: bool) -> nn.Module:
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    given: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    config = AutoConfig.from_pretrained(spec.folder, **given)
    if config.is_encoder_decoder:
        raise UserError(f"model.text: {spec.folder} holds an encoder and a decoder: give only an encoder. [text-has-decoder]")
    if not load_weights:
        return AutoModel.from_config(config, trust_remote_code=False, attn_implementation="eager")
    # "eager" attention does not depend on whether a batch has padding, so a text's features do not depend on other texts.
    options = {**given, "use_safetensors": True, "attn_implementation": "eager", "dtype": torch.float32}
    net, loading = AutoModel.from_pretrained(spec.folder, config=config, output_loading_info=True, **options)
    missing = [name for name in loading["missing_keys"] if not name.startswith("pooler.")]
    if missing or loading.get("mismatched_keys"):
        fault = f"'{missing[0]}' is missing" if missing else "a tensor has another shape"
        raise UserError(
            f"model.text: the weights in {spec.folder} do not fit config.json: {fault}. Copy the folder again, or give "
            "another. [text-misfit]"
        )
    return net


class TextTokenizer:
    """Turns texts into the token ids that a pretrained tower was trained on; nothing is learnt from the texts.

    Args:
        spec: Blueprint of the tower.

    Raises:
        UserError: If transformers cannot read the tokenizer's files.
    """

    def __init__(self, spec: TextBlueprint) -> None:
        from transformers import AutoTokenizer

        try:
            with quiet():
                self.stock = AutoTokenizer.from_pretrained(spec.folder, trust_remote_code=False, local_files_only=True)
        except Exception as error:  # a damaged file can make transformers raise anything
            raise UserError(f"model.text: the tokenizer in {spec.folder} fails ({words(error)}). [text-tokenizer]") from error
        self.vocabulary, self.context, self._padding = spec.vocabulary, spec.context, spec.padding

    def __call__(self, texts: list[str]) -> Tensor:
        """Returns the token ids of n texts, ``(n, context)`` int64, padded on the right."""
        tokens = torch.full((len(texts), self.context), self._padding, dtype=torch.int64)
        if not texts:
            return tokens
        beginnings = [text[: 64 * self.context] for text in texts]  # tokenizers take minutes for a million characters
        numbers = self.stock(beginnings, truncation=True, max_length=self.context, padding=False)["input_ids"]
        for row, ids in zip(tokens, numbers, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return tokens


def save_tower_files(tower: FrozenTextTower, tokenizer: TextTokenizer, folder: Path) -> None:
    """Writes all files of a tower except its weights, as transformers and sentence-transformers read them.

    Args:
        tower: Tower to save.
        tokenizer: Tokenizer of the tower.
        folder: Existing folder, to which the files are written.
    """
    tower.net.config.save_pretrained(folder)
    tokenizer.stock.save_pretrained(folder)
    (folder / POOLING).parent.mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": tower.spec.width, "pooling_mode_mean_tokens": tower.spec.pooling == "mean"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(_SENTENCE_MODULES)
    ]
    contents = {
        POOLING: pooling | {"pooling_mode_cls_token": tower.spec.pooling == "cls"},
        MODULES: modules,
        LENGTH: {"max_seq_length": tower.spec.context, "do_lower_case": False},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
