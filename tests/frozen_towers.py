"""Pretrained towers as files: a ResNet of timm with BatchNorm, and a text tower of the Hugging Face format, both tiny."""

from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from torch import nn

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a red green blue small large circle square triangle on the left right".split()


def image_weights(folder: Path, name: str = "test_resnet") -> str:
    """A file of weights whose BatchNorm has statistics as training leaves them."""
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
    save_file(net.state_dict(), folder / "image.safetensors")
    return str(folder / "image.safetensors")


def text_folder(folder: Path) -> str:
    """A BERT with a vocabulary of a few words."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder / "text")
    (folder / "text" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "text" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    return str(folder / "text")


def frozen(tiny: dict, folder: Path, **views: object) -> dict:
    """The configuration of a run with both towers, of which the heads are trained."""
    model = {"kind": "image-text", "image": "timm/test_resnet", "embedding": 16}
    model |= {"weights": image_weights(folder), "text": text_folder(folder)}
    return {**tiny, "model": model, "adaptation": {"image": "frozen"}, "views": views}
