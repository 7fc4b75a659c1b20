"""Which figures a run gets, from which records, under which names."""

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.evaluation.suite import evaluate, tasks_of


class Store:
    """120 records in memory; an image is filled with the record's number, a caption names it."""

    name, public = "memory", True

    def __init__(self, kind="image-text", columns=("shape",), captions=1, test=40):
        self.kind, self.count = kind, captions
        self.keys = np.random.default_rng(0).permutation(120).astype(np.uint64)
        self.labels = {name: np.arange(120) % (index + 2) for index, name in enumerate(columns)}
        self.label_names = {name: [] for name in columns}
        self.splits = {"train": np.arange(120 - test), "test": np.arange(120 - test, 120), "validation": np.arange(0)}
        self.seen = []

    def __len__(self):
        return 120

    def split(self, name):
        return self.splits[name]

    def images(self, rows, size):
        self.seen.append(np.array(rows))
        return torch.as_tensor(rows).to(torch.uint8)[:, None, None, None].expand(-1, 3, size, size).clone()

    def captions(self, rows):
        return [[f"{row} {n}" for n in range(self.count)] for row in rows]


class Model(torch.nn.Module):
    """Knows every record perfectly: features are the record's number as one-hot, and modulo 2 and 3."""

    def features(self, images):
        assert not self.training
        number = images[:, 0, 0, 0].long()
        return torch.cat([10.0 * torch.nn.functional.one_hot(number % n, n) for n in (2, 3)], dim=1)

    def embed_images(self, images):
        return torch.nn.functional.one_hot(images[:, 0, 0, 0].long(), 256).float()

    def embed_text(self, tokens):
        return torch.nn.functional.one_hot(tokens[:, 0], 256).float()


def tokenizer(texts):
    return torch.tensor([[int(text.split()[0])] for text in texts])


def run(store, network=None, **sections):
    config = parse_config({"model": {"kind": "image-text"}, "data": {"size": 8}, **sections})
    found = evaluate(network or Model(), store, config, lambda x: x.float(), tokenizer, "trained", 7, "cpu")
    return {item.name: item for item in found}


def test_a_perfect_model_scores_perfectly_on_all_that_the_store_allows():
    found = run(Store())
    assert set(found) == {
        *(f"{d}_{m}" for d in ("image_to_text", "text_to_image") for m in ("R@1", "R@5", "R@10", "mean_rank", "median_rank")),
        *("knn3_accuracy", "knn200_accuracy", "linear_probe_accuracy"),
    }
    assert all(item.value == 1.0 for item in found.values())
    assert {(item.model, item.step, item.split) for item in found.values()} == {("trained", 7, "test")}
    assert "80 labelled training records, 40 held-out" in found["knn3_accuracy"].protocol


def test_several_label_columns_get_suffixes_and_unlabelled_records_are_left_out():
    store = Store(columns=("shape", "colour"))
    store.labels["colour"][::2] = -1
    found = run(store, evaluation={"tasks": ["knn"]})
    assert set(found) == {f"knn{k}_accuracy[{name}]" for k in (3, 200) for name in ("shape", "colour")}
    assert "40 labelled training records, 20 held-out" in found["knn3_accuracy[colour]"].protocol


def test_all_captions_count():
    found = run(Store(captions=3), evaluation={"tasks": ["retrieval"]})
    assert found["image_to_text_mean_rank"].value == found["text_to_image_R@1"].value == 1
    assert "40 images against 120 captions" in found["text_to_image_R@1"].protocol


def test_subsets_are_the_records_with_the_smallest_keys():
    store = Store()
    run(store, evaluation={"tasks": ["knn"], "records": 10, "bank": 20})
    for split, seen, count in (("train", store.seen[0], 20), ("test", store.seen[1], 10)):
        rows = store.split(split)
        assert set(seen) == set(rows[np.argsort(store.keys[rows])][:count])


def test_held_out_figures_never_read_training_images_for_retrieval():
    store = Store()
    run(store, evaluation={"tasks": ["retrieval"]})
    assert set(np.concatenate(store.seen)) == set(store.split("test"))


@pytest.mark.parametrize(
    ("store", "sections", "reason"),
    [
        (Store(kind="image"), {"evaluation": {"tasks": ["retrieval"]}}, "no captions"),
        (Store(), {"evaluation": {"tasks": ["retrieval"]}, "model": {"kind": "image"}}, "no text tower"),
        (Store(columns=()), {"evaluation": {"tasks": ["knn"]}}, "no labels"),
    ],
)
def test_an_impossible_task_is_refused_and_never_chosen(store, sections, reason):
    with pytest.raises(UserError, match=reason):
        run(store, **sections)
    task = sections["evaluation"].pop("tasks")[0]
    assert task not in tasks_of(store, parse_config({"model": {"kind": "image-text"}, **sections}))


@pytest.mark.parametrize("tasks", [[], ["linear"]])
def test_an_empty_split_is_refused_unless_nothing_is_to_be_measured(tasks):
    with pytest.raises(UserError, match="split of memory is empty"):
        run(Store(), evaluation={"tasks": tasks, "split": "validation"})
    assert tasks_of(Store(), parse_config({"evaluation": {"tasks": tasks, "split": "none"}})) == ()


def test_labels_that_no_held_out_record_has_are_no_labels():
    store = Store()
    store.labels["shape"][store.split("test")] = -1
    assert tasks_of(store, parse_config({"model": {"kind": "image-text"}})) == ("retrieval",)


def test_leaves_the_model_in_its_mode_and_its_features_usable():
    model = Model().train()
    run(Store(), model)
    assert model.training
