"""Blueprints of pretrained text towers: folders in the Hugging Face format, local or fetched from the Hugging Face hub.

The module reads them without torch.

A folder holds ``config.json``, the tokenizer's files and ``model.safetensors``. A folder that sentence-transformers wrote also
holds ``modules.json`` and the pooling, which makes one vector from the tokens of a text. Nothing in the folder is executed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.errors import UserError
from dpfed.files.reading import read_text
from dpfed.models.blueprints import LOCAL_DIR, quiet
from dpfed.models.options import SENTENCES
from dpfed.models.weight_files import not_fetched, words

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MODULES = "modules.json"
LENGTH = "sentence_bert_config.json"
POOLING = "1_Pooling/config.json"
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_FETCHED = ["*.json", "*.txt", "*.model", WEIGHTS, "1_Pooling/*.json"]
_KNOWN = ("Transformer", "Pooling", "Normalize")  # supported modules of sentence-transformers; dpfed needs no Normalize
_LONGEST = 512  # tokens, for a model without a limit of its own


@dataclass(frozen=True)
class TextBlueprint:
    """A text tower that can be built.

    Attributes:
        folder: Folder of the tower's files.
        width: Number of dimensions of the tower's features.
        vocabulary: Number of different tokens.
        context: Largest number of tokens that the tower reads of a text.
        padding: Id of the padding token.
        pooling: Pooling of a text's tokens into one vector: the ``mean`` over the tokens that are not padding, or the first
            token's vector (``cls``).
    """

    folder: Path
    width: int
    vocabulary: int
    context: int
    padding: int
    pooling: str

    @functools.cached_property
    def digest(self) -> str:
        """Hash of architecture, tokenizer and weights: a frozen tower is never sent, so all parties need the same tower."""
        digest = hashlib.sha256()
        for name in (CONFIG, POOLING, *_TOKENIZERS, WEIGHTS):
            if (self.folder / name).is_file():
                with open(self.folder / name, "rb") as file:
                    digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()[:16]


def text_blueprint(name: str, weights: bool = True) -> TextBlueprint:
    """Looks up the text tower that ``model.text`` names, and fetches it if the name is one of the Hugging Face hub.

    For a name on the hub, every call asks the hub for the newest revision, and fetches those files that this machine lacks. If
    the hub cannot be reached, the copy in the cache is used.

    Args:
        name: Name ``sentence-transformers/NAME``, or a folder.
        weights: Whether the folder must also hold the weights.

    Raises:
        UserError: If the package transformers is missing, the folder does not exist or cannot be fetched, or a file is missing,
            unreadable or asks for something unsupported.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UserError(f"model.text = '{name}' needs the package transformers: install dpfed[text]. [text-package]")
    folder = _fetched(name) if name.startswith(SENTENCES) and not Path(name).is_dir() else _local(name)
    config = _json(folder / CONFIG)
    if not any((folder / file).is_file() for file in _TOKENIZERS):
        raise UserError(f"model.text: {folder} has no tokenizer; expected one of {', '.join(_TOKENIZERS)}. [text-no-tokenizer]")
    if weights and not (folder / WEIGHTS).is_file():
        raise UserError(f"model.text: {folder} has no {WEIGHTS} (other formats may run code: convert them). [text-no-weights]")
    modules = _json(folder / MODULES) if (folder / MODULES).is_file() else []
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    if others := [kind for kind in kinds if kind not in _KNOWN]:
        raise UserError(f"model.text: {folder} has a module {others[0]}, unknown to dpfed: use another model. [text-module]")
    try:
        width, vocabulary = int(config["hidden_size"]), int(config["vocab_size"])
        longest = int(config.get("max_position_embeddings") or _LONGEST)
        padding = int(config.get("pad_token_id") or 0)
        longest -= padding + 1 if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"model.text: {folder / CONFIG} describes no text tower; expected whole numbers hidden_size and vocab_size. "
            f"Missing or wrong: {error}. Give another folder. [text-config]"
        ) from error
    return TextBlueprint(folder, width, vocabulary, min(longest, _length(folder)), padding, _pooling(folder))


def _length(folder: Path) -> int:
    """Returns the largest number of tokens of a text, as sentence-transformers keeps it in a file of its own."""
    said = _json(folder / LENGTH) if (folder / LENGTH).is_file() else {}
    try:
        return int(said.get("max_seq_length") or _LONGEST)
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"model.text: {folder / LENGTH} must be an object, in which max_seq_length, if given, is a whole number; got "
            f"{str(said)[:80]}. Correct the file, or give another folder. [text-length]"
        ) from error


def _local(name: str) -> Path:
    folder = Path(name.removeprefix(LOCAL_DIR)).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"model.text: there is no folder {folder}; expected 'transformer' (dpfed's own), '{SENTENCES}NAME', or a folder "
            f"with {CONFIG}, the tokenizer's files and {WEIGHTS}. [text-folder]"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(f"model.text: {folder} has no {CONFIG}: give a folder in the format of Hugging Face. [text-no-config]")
    return folder


def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        with quiet():
            return Path(snapshot_download(name, allow_patterns=_FETCHED))
    except Exception as error:  # a download can raise anything: the network, the disk, the hub's client
        raise UserError(
            f"model.text = '{name}' is unavailable ({not_fetched(error)}); set model.text to a folder with its files. "
            "[text-unavailable]"
        ) from error


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise UserError(f"model.text: cannot read {path} ({words(error)}). [text-unreadable]") from error


def _pooling(folder: Path) -> str:
    if not (folder / POOLING).is_file():
        return "mean"
    said = _json(folder / POOLING)
    said = said if isinstance(said, dict) else {}
    wanted = [key.removeprefix("pooling_mode_").partition("_tokens")[0] for key, on in said.items() if on is True]
    wanted = [said["pooling_mode"]] if "pooling_mode" in said else wanted
    modes = [str(mode).removesuffix("_token") for mode in wanted if mode != "include_prompt"]
    if modes not in (["mean"], ["cls"]):
        raise UserError(
            f"model.text: {folder / POOLING} pools by {', '.join(modes) or 'no mode'}; dpfed knows mean and cls: use another "
            "model. [text-pooling]"
        )
    return modes[0]
