"""A user's own encoders and tokenizer: what cannot be used is refused when the model is made, or at its first pass."""

import pytest
import torch
from torch import Tensor, nn

import dpfed
from dpfed.models.own import OwnTokenizer, finish_model

LENGTH = 3


def tokens(texts: list[str], length: int = LENGTH) -> Tensor:
    assert texts, "an own tokenizer need not know an empty list"
    return torch.ones(len(texts), length, dtype=torch.int64)


def longest(texts: list[str]) -> Tensor:
    """Pads to the longest text of a batch, as tokenizers of transformers do with ``padding=True``."""
    return tokens(texts, max(map(len, texts)))


def test_a_tokenizer_that_pads_to_the_longest_text_is_refused():
    """Otherwise a record's tokens, and with them its gradient, would depend on the other records of a step."""
    with pytest.raises(dpfed.UserError, match="model-tokenizer-length"):
        OwnTokenizer(longest, 9)
    tokenizer = OwnTokenizer(lambda texts: tokens(texts, LENGTH + (len(texts) > 2)), 9)
    with pytest.raises(dpfed.UserError, match="model-tokenizer-length"):
        tokenizer(["a", "b", "c"])


def test_no_texts_have_no_tokens():
    assert OwnTokenizer(tokens, 9)([]).shape == (0, LENGTH)


def test_a_cluster_does_not_log_a_caption():
    def fails(texts: list[str]) -> Tensor:
        raise ValueError(texts[0])

    with pytest.raises(dpfed.UserError, match=r"model-tokenizer\]") as caught:
        OwnTokenizer(lambda texts: fails(texts) if "secret" in texts else tokens(texts), 9)(["secret"])
    assert "secret" in str(caught.value) and "secret" not in caught.value.public


@pytest.mark.parametrize(
    ("function", "vocabulary", "said"),
    [
        (lambda texts: tokens(texts, 0), 9, "model-tokenizer-other"),
        (lambda texts: tokens(texts).tolist(), 9, "model-tokenizer-other"),
        (tokens, "9", "model-vocabulary-other"),
        (tokens, None, "model-vocabulary-other"),
        (tokens, 1, "model-vocabulary"),
    ],
)
def test_a_tokenizer_that_cannot_be_used(function, vocabulary, said):
    with pytest.raises(dpfed.UserError, match=said):
        OwnTokenizer(function, vocabulary)


@pytest.mark.parametrize("width", [0, -1, 1.5, "8", True, nn.Linear(2, 2)], ids=repr)
def test_a_width_that_is_none(width):
    encoder = nn.Flatten()
    for make in (
        lambda: dpfed.SimCLR(encoder, width),
        lambda: dpfed.SimCLR(encoder, hidden=width),
        lambda: dpfed.TwoTower(encoder, encoder, tokens, vocabulary=9, embedding=width),
        lambda: dpfed.BYOL(encoder, hidden=width),
        lambda: dpfed.BYOL(encoder, embedding=width),
    ):
        with pytest.raises(dpfed.UserError, match="model-width"):
            make()


def test_a_head_that_is_no_module():
    with pytest.raises(dpfed.UserError, match=r"as head.*\[model-not-module"):
        dpfed.SimCLR(nn.Flatten(), head=64)


class AsFloats(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def test_a_model_whose_parameters_are_all_lazy_is_finished():
    model = dpfed.TwoTower(nn.Flatten(), AsFloats(), tokens, vocabulary=9, embedding=4)
    finish_model(model, torch.zeros(2, 3, 4, 4), model.tokenizer(["a", "b"]))
    assert sum(parameter.numel() for parameter in model.parameters()) == 4 * (3 * 4 * 4 + LENGTH)
