"""One group-clipped step of ViT-B-32 with adapters, on this machine: does it run, is it exact, what travels.

    python -m benchmarks.vit          prints, and writes benchmarks/results/vit.json

32 records of 224 px with captions of 77 tokens, in groups of 4, random weights, LoRA of rank 16 on q and v of both towers. The
gradient of every group is compared with plain autograd on a loss written out here.
"""

from __future__ import annotations

import resource
import time

import torch
import torch.nn.functional as F

from benchmarks.record import write_result
from dpfed.bounding.engines import GroupBatch, LoopEngine
from dpfed.config import AdaptationConfig, Config, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model, tokenizer_for
from dpfed.models.parameters import TrainableVector
from dpfed.models.summary import trained_part

RECORDS, GROUP, TEMPERATURE, CLIP = 32, 4, 0.01, 0.01


def plain_gradient(model: torch.nn.Module, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The gradient of one group's loss: softmax over its own pairs, both ways, by ``backward()`` on open_clip's own calls."""
    model.zero_grad()
    x, y = model.clip.encode_image(images, normalize=True), model.clip.encode_text(tokens, normalize=True)
    logits = x @ y.T / TEMPERATURE
    own = torch.arange(len(x), device=x.device)
    (F.cross_entropy(logits, own, reduction="sum") + F.cross_entropy(logits.T, own, reduction="sum")).backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters() if parameter.requires_grad])


def measure(
    architecture: str = "ViT-B-32", records: int = RECORDS, group: int = GROUP, device: torch.device | str = "cpu"
) -> dict:
    """Runs the step and the comparison."""
    torch.manual_seed(0)
    config = Config(
        model=ModelConfig(kind="open_clip", architecture=architecture),
        objective=ObjectiveConfig(temperature=TEMPERATURE),
        adaptation=AdaptationConfig(rank=16, image_layers=("q", "v"), text_layers=("q", "v")),
    )
    model = build_model(config.model, config.objective, config.adaptation).to(device)
    for name, parameter in model.named_parameters():
        if name.endswith(".up"):  # at its first step an adapter has no gradient on one side; this is a later step
            torch.nn.init.normal_(parameter, std=0.01)
    size = model.model_cfg["vision_cfg"]["image_size"]
    tokens = tokenizer_for(config.model)(
        [f"a photo of thing number {record}, seen from above" for record in range(records)]
    ).to(device)
    images = torch.randn(records, 3, size, size).to(device)
    vector, engine = TrainableVector(model), LoopEngine(model)
    views = {"image": images[:, None], "text": tokens[:, None]}
    starts = list(range(0, records + 1, group))
    engine.add_clipped(GroupBatch(views, starts).first(2), CLIP, vector.zeros())  # warm-up
    total = vector.zeros()
    started = time.perf_counter()
    norms = engine.add_clipped(GroupBatch(views, starts), CLIP, total)
    seconds = time.perf_counter() - started
    errors, expected = [], vector.zeros()
    for first, end in zip(starts, starts[1:], strict=False):
        one = vector.zeros()
        part = GroupBatch({name: view[first:end] for name, view in views.items()}, [0, end - first])
        engine.add_clipped(part, 1e9, one)
        plain = plain_gradient(model, images[first:end], tokens[first:end])
        errors.append(float((one - plain).norm() / plain.norm()))
        expected += plain * min(1.0, CLIP / float(plain.double().norm()))
    trained = trained_part(model, config)
    return {
        "architecture": architecture,
        "records": records,
        "groups": len(norms),
        "seconds": seconds,
        "largest_relative_error_of_a_group": max(errors),
        "relative_error_of_the_clipped_sum": float((total - expected).norm() / expected.norm()),
        "trainable_parameters": trained.trainable,
        "parameters": trained.total,
        "bytes_per_aggregate": trained.bytes_per_aggregate,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measures, prints and writes ``benchmarks/results/vit.json``."""
    figures = measure()
    for name, value in figures.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):>36}  {shown}")
    print(write_result("vit", figures, seeds=[0]))


if __name__ == "__main__":
    main()
