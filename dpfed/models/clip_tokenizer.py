"""The tokenizer of an open_clip model. Its vocabulary is public: nothing is learnt from the captions."""

from __future__ import annotations

from typing import Any

import torch

from dpfed.errors import UserError
from dpfed.models.blueprints import LOCAL_DIR, Blueprint, quiet

_LONGEST_TOKEN = 48  # characters, with the blank after it; the longest token of open_clip's own vocabulary has 32
_OPTIONS = {"shipped": ("clean", "additional_special_tokens", "reduction_mask"), "fetched": ("clean", "strip_sep_token")}


class ClipTokenizer:
    """Turns captions into the token ids that the model's text tower reads.

    Args:
        tokenizer: Tokenizer of open_clip.
        vocabulary: Number of different tokens.
        context: Number of tokens that are read, start and end tokens included; the rest of a caption is cut off.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, context: int) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.context = context

    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Returns the token ids of n texts, ``(n, context)`` int64."""
        if not texts:
            return torch.zeros(0, self.context, dtype=torch.int64)
        return self._tokenizer([_beginning(text, self.context) for text in texts], context_length=self.context).long()

    @property
    def stock(self) -> Any:
        """The tokenizer of open_clip."""
        return self._tokenizer


def _beginning(text: str, tokens: int) -> str:
    """Returns the beginning of a text, with at least all characters that `tokens` tokens can hold.

    Tokenizers would take minutes for a million characters.
    """
    most = _LONGEST_TOKEN * tokens
    return text if len(text) <= most else " ".join(text.split())[:most]


def clip_tokenizer(spec: Blueprint) -> ClipTokenizer:
    """Makes the tokenizer of an architecture, from open_clip's files, from files beside local weights, or by fetching it.

    Raises:
        UserError: If open_clip does not ship the tokenizer, and the tokenizer can neither be read from the folder of local
            weights nor be fetched. Reading and fetching need the package transformers. A tokenizer is fetched only for weights
            that a tag names.
    """
    from open_clip.tokenizer import SimpleTokenizer

    text = spec.model_cfg["text_cfg"]
    name, given = text.get("hf_tokenizer_name"), text.get("tokenizer_kwargs") or {}
    # An architecture is untrusted data: only these of its options are passed on, and none that could make a library run code.
    options = {key: given[key] for key in _OPTIONS["fetched" if name else "shipped"] if key in given}
    if not name:
        return ClipTokenizer(SimpleTokenizer(context_length=spec.context, **options), spec.vocabulary, spec.context)
    local = spec.folder is not None and (spec.folder / "tokenizer_config.json").is_file()
    if not local and spec.tag is None:
        raise UserError(
            f"{spec.name} needs the tokenizer '{name}', which open_clip does not ship: put that tokenizer's files into "
            f"a folder with the weights (model.architecture = '{LOCAL_DIR}DIR'), or, with random weights, set "
            "model.tokenizer = 'words'. [tokenizer-not-shipped]"
        )
    from open_clip.tokenizer import HFTokenizer

    try:
        with quiet():
            source = str(spec.folder) if local else name
            tokenizer = HFTokenizer(
                source,
                context_length=spec.context,
                tokenizer_mode=text.get("tokenizer_mode"),
                trust_remote_code=False,
                **options,
            )
    except Exception as error:  # a missing package, the network, the hub's client
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        remedy = (
            f"install transformers, or copy the tokenizer's files to {spec.folder} again"
            if local
            else "install transformers and go online, or put the tokenizer's files into a folder with the weights "
            f"(model.architecture = '{LOCAL_DIR}DIR')"
        )
        raise UserError(
            f"the tokenizer '{name}' of {spec.name} is not available ({reason}): {remedy}. [tokenizer-unavailable]"
        ) from error
    return ClipTokenizer(tokenizer, spec.vocabulary, spec.context)
