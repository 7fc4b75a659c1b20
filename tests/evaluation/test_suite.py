"""Which figures a run gets, from which records, under which names."""

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.evaluation.features import Embedder
from dpfed.evaluation.intervals import wilson
from dpfed.evaluation.suite import evaluate
from dpfed.evaluation.tasks import refuse_empty_split, tasks_of
from tests.memory_store import Splits


class Store(Splits):
    """120 records in memory; an image is filled with the record's number, a caption names it."""

    name = "memory"
    public = True
    units = None
    unit_name = None

    def __init__(self, kind="image-text", columns=("shape",), captions=1, test=40):
        self.kind, self.each = kind, captions
        self.keys = np.random.default_rng(0).permutation(120).astype(np.uint64)
        self.labels = {name: np.arange(120) % (index + 2) for index, name in enumerate(columns)}
        self.label_names = {name: [] for name in columns}
        self.splits = {"train": np.arange(120 - test), "test": np.arange(120 - test, 120), "validation": np.arange(0)}
        self.seen = []

    def __len__(self):
        return 120

    def split(self, name):
        return self.splits[name]

    def read(self, indices):
        self.seen.append(np.array(indices))
        return torch.as_tensor(indices).to(torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8).clone()

    def captions(self, indices):
        return [[f"{row} {n}" for n in range(self.each)] for row in indices]


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


def allowed(store, config):
    return tasks_of(store, config.evaluation, config.model)


def measured(network, store, config, read_text):
    options, tasks = config.evaluation, allowed(store, config)
    embedder = Embedder(network, store.read, lambda x: x.float(), read_text, "cpu")
    results = evaluate(embedder, store, options, tasks, "trained", 7)
    return {item.name: item for item in results}


def run(store, network=None, **sections):
    return measured(network or Model(), store, parse_config({"model": {"kind": "image-text"}, **sections}), tokenizer)


def test_a_perfect_model_scores_perfectly_on_every_task():
    results = run(Store())
    assert set(results) == {
        *(f"{d}_{m}" for d in ("image_to_text", "text_to_image") for m in ("R@1", "R@5", "R@10")),
        *("knn3_accuracy", "knn200_accuracy", "linear_probe_accuracy"),
    }
    assert all(item.value == 1.0 for item in results.values())
    assert {(item.model, item.step, item.split) for item in results.values()} == {("trained", 7, "test")}
    assert "80 labelled training records, 40 held-out" in results["knn3_accuracy"].protocol
    assert {item.queries for item in results.values()} == {40}
    assert all(item.chance is not None for item in results.values())
    assert results["image_to_text_R@10"].chance == pytest.approx(10 / 40)
    # What came of each query is in memory only: it would tell which held-out record is which.
    written = {"name", "value", "model", "split", "protocol", "step", "queries", "interval", "chance"}
    assert all(item.facts().keys() | {"chance"} == written and item.outcomes is not None for item in results.values())
    assert results["knn3_accuracy"].compared(list(results.values())).facts().keys() == written | {"change"}


def test_error_bars_count_held_out_units_where_there_are_units():
    store, shares = Store(captions=2), ("knn3_accuracy", "image_to_text_R@1", "text_to_image_R@1")
    assert {name: run(store)[name].interval for name in shares} == {name: wilson(1.0, 40) for name in shares}
    store.units, store.unit_name = (np.arange(120) // 4).astype(np.uint64) << np.uint64(40), "person"
    results = run(store)
    assert {name: results[name].interval for name in shares} == {name: wilson(1.0, 10) for name in shares}
    assert [results[name].queries for name in shares] == [40, 40, 80]


def test_images_with_equal_captions_are_all_right():
    """Captions name the record's number halved: two records share each, and 20 different ones are left."""
    store = Store()
    store.captions = lambda indices: [[f"{row // 2}"] for row in indices]
    network = Model()
    network.embed_images = lambda images: Model.embed_images(network, images // 2)
    results = run(store, network, evaluation={"tasks": ["retrieval"]})
    assert results["image_to_text_R@1"].value == results["text_to_image_R@1"].value == 1
    assert "40 images against 20 captions (equal captions counted once)" in results["text_to_image_R@1"].protocol


def test_any_record_of_the_unit_is_right_if_the_config_says_so():
    """The model knows the person (three records each), not the record: that is enough for units, not for records."""
    store = Store()
    store.units, store.unit_name = (np.arange(120) // 3).astype(np.uint64) << np.uint64(40), "person"
    network = Model()
    network.embed_images = lambda images: Model.embed_images(network, images // 3)
    network.embed_text = lambda tokens: Model.embed_text(network, tokens // 3)
    results = run(store, network, evaluation={"tasks": ["retrieval"], "match": "unit"})
    assert results["image_to_text_R@1"].value == results["text_to_image_R@1"].value == 1
    assert "the same person" in results["text_to_image_R@1"].protocol
    assert run(store, network, evaluation={"tasks": ["retrieval"]})["image_to_text_R@1"].value < 0.2


def test_missing_units_are_refused_before_anything_is_measured():
    store = Store()
    with pytest.raises(UserError, match="eval-no-units"):
        run(store, evaluation={"match": "unit"})
    assert not store.seen


class Namer(Model):
    """Embeds an image by its number modulo the classes, and a prompt by the class that it names."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def embed_images(self, images):
        return torch.nn.functional.one_hot(images[:, 0, 0, 0].long() % len(self.names), 256).float()


def named(names, columns=("shape",)):
    """A store whose last label column has these classes, a model that knows them, and its tokenizer."""
    store = Store(columns=columns)
    store.labels[columns[-1]] = np.arange(120) % len(names)
    store.label_names[columns[-1]] = names

    def read_text(texts):
        return torch.tensor([[next(i for i, name in enumerate(names) if name in text)] for text in texts])

    return store, Namer(names), read_text


def zero_shot(store, network, read_text, **evaluation):
    config = parse_config({"model": {"kind": "image-text"}, "evaluation": {"tasks": ["zero_shot"], **evaluation}})
    return measured(network, store, config, read_text)


def test_zero_shot_finds_the_class_that_the_image_shows():
    results = zero_shot(*named(["cube", "sphere", "ring"]))
    assert {name: item.value for name, item in results.items()} == {"zero_shot_accuracy": 1.0}
    assert "'a photo of a {}.', 3 classes, 40 held-out records" in results["zero_shot_accuracy"].protocol


@pytest.mark.parametrize(("names", "chosen"), [(["cube", "ring"], True), (["0", "1"], False), ([], False)])
def test_zero_shot_is_chosen_where_class_names_are_words(names, chosen):
    store = Store()
    store.label_names["shape"] = names
    tasks = allowed(store, parse_config({"model": {"kind": "image-text"}}))
    assert tasks == ("retrieval", *(["zero_shot"] if chosen else []), "knn", "linear")
    assert "zero_shot" not in allowed(store, parse_config({"model": {"kind": "image"}}))


def test_a_template_without_a_class_is_refused_at_once():
    store, *_ = named(["cube", "ring"])
    wrong = {"model": {"kind": "image-text"}, "evaluation": {"templates": ["a {}", "a photo"]}}
    with pytest.raises(UserError, match=r"'a photo'.*\[eval-template"):
        allowed(store, parse_config(wrong))
    store.label_names["shape"] = []
    assert "zero_shot" not in allowed(store, parse_config(wrong))


def test_held_out_retrieval_reads_no_training_images():
    store = Store()
    run(store, evaluation={"tasks": ["retrieval"]})
    assert set(np.concatenate(store.seen)) == set(store.split("test"))


@pytest.mark.parametrize(
    ("store", "sections", "reason"),
    [
        (Store(kind="image"), {"evaluation": {"tasks": ["retrieval"]}}, "no captions"),
        (Store(), {"evaluation": {"tasks": ["retrieval"]}, "model": {"kind": "image"}}, "no text tower"),
        (Store(columns=()), {"evaluation": {"tasks": ["knn"]}}, "no label of .* is given in both"),
        (Store(), {"evaluation": {"tasks": ["zero_shot"]}}, "no labels whose classes have names"),
        (Store(), {"evaluation": {"tasks": ["zero_shot"]}, "model": {"kind": "image"}}, "no text tower"),
    ],
)
def test_an_impossible_task_is_refused_and_never_chosen(store, sections, reason):
    with pytest.raises(UserError, match=rf"{reason}.*\[eval-task"):
        run(store, **sections)
    task = sections["evaluation"].pop("tasks")[0]
    assert task not in allowed(store, parse_config({"model": {"kind": "image-text"}, **sections}))


@pytest.mark.parametrize("tasks", [[], ["linear"]])
def test_an_empty_split_is_refused_unless_nothing_is_measured(tasks):
    with pytest.raises(UserError, match="eval-empty"):
        run(Store(), evaluation={"tasks": tasks, "split": "validation"})
    with pytest.raises(UserError, match="eval-empty") as refused:
        refuse_empty_split({"validation": 0, "test": 0}, "x", parse_config({"evaluation": {"tasks": tasks}}).evaluation)
    assert ("evaluation.split=none --set evaluation.tasks=" in refused.value.command) == bool(tasks)
    assert allowed(Store(), parse_config({"evaluation": {"split": "none"}})) == ()
