"""Zero-shot classification against a loop that follows the definition."""

import numpy as np
import pytest
import torch

from dpfed.errors import UserError
from dpfed.evaluation.zero_shot import class_embeddings, zero_shot_right


def zero_shot_metrics(*given):
    return {name: float(right.double().mean()) for name, right in zero_shot_right(*given).items()}


def embed(texts):
    """A fixed embedding of each text, of any length: normalising is not the embedder's business."""
    indices = [np.random.default_rng(list(text.encode())).normal(size=6) * (1 + len(text)) for text in texts]
    return torch.tensor(np.array(indices))


def unit(x):
    return x / np.linalg.norm(x)


def test_a_class_is_the_mean_of_its_normalised_prompts():
    names, templates = ["cat", "maple_tree", "a {b}"], ["a photo of a {}.", "{} and {}", "{}"]
    expected = []
    for name in ("cat", "maple tree", "a {b}"):
        prompts = [f"a photo of a {name}.", f"{name} and {name}", name]
        expected.append(unit(np.mean([unit(embed([prompt])[0].numpy()) for prompt in prompts], axis=0)))
    np.testing.assert_allclose(class_embeddings(names, templates, embed).numpy(), np.array(expected), rtol=1e-5)


@pytest.mark.parametrize("template", ["a photo", "", "{ }", "{name}"])
def test_a_template_without_a_place_for_the_class_is_refused(template):
    with pytest.raises(UserError, match="eval-template"):
        class_embeddings(["a"], ["a {}", template], embed)


def naive(image_z, class_z, labels, k):
    right = 0
    for z, label in zip(image_z.double().numpy(), labels.tolist(), strict=True):
        cosines = [round(float(unit(z) @ c), 6) for c in class_z.double().numpy()]
        right += sum(c >= cosines[label] for c in cosines) <= k  # the right class itself, and all that it does not beat
    return right / len(labels)


@pytest.mark.parametrize(("classes", "tied"), [(2, False), (10, True), (11, False), (30, True)])
def test_equals_the_definition(classes, tied):
    g = torch.Generator().manual_seed(classes)
    class_z = torch.nn.functional.normalize(torch.randn(classes, 5, generator=g), dim=1)
    if tied:
        class_z[1::3] = class_z[0]
    labels = torch.randint(classes, (200,), generator=g)
    image_z = 3 * class_z[labels] + torch.randn(200, 5, generator=g)
    metrics = zero_shot_metrics(image_z, class_z, labels)
    expected = {"zero_shot_accuracy": naive(image_z, class_z, labels, 1)}
    if classes > 10:
        expected["zero_shot_top5_accuracy"] = naive(image_z, class_z, labels, 5)
    assert metrics == pytest.approx(expected)
    assert 0.1 < metrics["zero_shot_accuracy"] < 1


@pytest.mark.parametrize("z", [torch.ones(20, 3), torch.full((20, 3), torch.nan)])
def test_an_embedding_that_says_nothing_is_never_right(z):
    metrics = zero_shot_metrics(z, torch.nn.functional.normalize(torch.ones(12, 3), dim=1), torch.arange(20) % 12)
    assert metrics == {"zero_shot_accuracy": 0.0, "zero_shot_top5_accuracy": 0.0}
