"""Which public records join a group, and which public sets are refused."""

import io
import re

import numpy as np
import pytest
import scipy.stats
import torch
from PIL import Image

from dpfed.config import PublicConfig, parse_config
from dpfed.data.generated.shapes import shapes_store, write_shapes
from dpfed.data.public_records import PublicNegatives
from dpfed.data.public_store import open_public, public_fingerprint, share_images
from dpfed.data.sampling import draw_step
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.runs.records import public_records_of, records_of
from dpfed.runs.resolution import resolve_defaults

RANDOMNESS = Randomness.from_seed(2)


def keys(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, size=count, dtype=np.uint64)


def public_negatives(records=20, count=3):
    return PublicNegatives(None, np.arange(100, 100 + records), count)


def plan(**changes):
    fields = {"records": 400, "batch": 120, "group_size": 1, "clip_norm": 1.0, "steps": 10, "noise_multiplier": 1.0}
    return PrivacyPlan.of(**fields | changes, delta=1e-5, method_name="public", options={"public_records": 3})


@pytest.mark.parametrize(("records", "count"), [(20, 3), (7, 7), (5, 4), (1, 1)])
def test_companions_are_public_records_that_differ(records, count):
    drawn = public_negatives(records, count).of(keys(500), RANDOMNESS, 4)
    assert drawn.shape == (500, count) and drawn.min() >= 100 and drawn.max() < 100 + records
    assert all(len(set(row)) == count for row in drawn.tolist())


def test_companions_are_a_function_of_key_and_step_alone():
    one, key = public_negatives(), keys(300)
    drawn = one.of(key, RANDOMNESS, 4)
    order = np.random.default_rng(1).permutation(300)[:200]
    assert np.array_equal(one.of(key[order], RANDOMNESS, 4), drawn[order])
    assert not np.array_equal(one.of(key, RANDOMNESS, 5), drawn)


def test_all_sets_of_companions_are_equally_likely():
    drawn = public_negatives(6, 2).of(keys(15_000), RANDOMNESS, 0) - 100
    counts = np.bincount(drawn[:, 0] * 6 + drawn[:, 1])
    counts = counts[counts > 0]  # rows are in ascending order
    assert len(counts) == 15 and scipy.stats.chisquare(counts).pvalue > 1e-3


def test_fewer_public_records_than_join_a_group_are_a_mistake():
    with pytest.raises(ValueError, match="fewer"):
        public_negatives(2, 3)


@pytest.mark.parametrize("trial", range(10))
def test_every_drawn_record_makes_a_group_and_changes_no_other(trial):
    p, key, indices = plan(), keys(400, trial), np.arange(400)
    draw = draw_step(p, RANDOMNESS, 3, indices, key, p.groups)
    assert len(draw) == len(draw.indices) and np.array_equal(draw.keys, key[draw.indices])
    rest = np.delete(indices, draw.indices[trial])
    fewer = draw_step(p, RANDOMNESS, 3, rest, key[rest], p.groups)
    assert np.array_equal(fewer.indices, np.delete(draw.indices, trial))
    for world_size in (2, 3):  # who holds a record does not matter, either
        partitions = [indices[key % np.uint64(world_size) == rank] for rank in range(world_size)]
        drawn = [
            draw_step(p, RANDOMNESS, 3, partition, key[partition], p.groups_of(o, world_size)).indices
            for o, partition in enumerate(partitions)
        ]
        assert sorted(np.concatenate(drawn)) == sorted(draw.indices)


@pytest.mark.parametrize("per_unit", [1, 2, 5])
def test_every_drawn_unit_makes_one_group_of_its_records(per_unit):
    p, key, indices = plan(records=80, batch=30, unit="user", per_unit=per_unit), keys(400), np.arange(400)
    unit = keys(80, 1)[indices % 80]
    draw = draw_step(p, RANDOMNESS, 3, indices, key, p.groups, unit)
    assert len(set(draw.keys.tolist())) == len(draw)
    for group in range(len(draw)):
        members = draw.members(group)
        assert set(unit[members]) == {draw.keys[group]} and len(members) == min(per_unit, 5)
    gone = unit == draw.keys[2]
    rest = indices[~gone]
    fewer = draw_step(p, RANDOMNESS, 3, rest, key[rest], p.groups, unit[rest])
    assert np.array_equal(fewer.keys, np.delete(draw.keys, 2))
    assert np.array_equal(fewer.indices, draw.indices[~gone[draw.indices]])


def test_public_records_stand_behind_a_groups_own():
    class Views:
        def __call__(self, indices, randomness, step, device):
            assert randomness.master != RANDOMNESS.master  # a private record of the same name draws other views
            return {"image": torch.from_numpy(indices.astype(np.float32))}

    one = PublicNegatives(Views(), np.arange(100, 120), 2)
    key, cpu = keys(3), torch.device("cpu")
    views, offsets = one.joined({"image": torch.tensor([1.0, 2.0, 3.0, 4.0])}, [0, 1, 3, 4], key, RANDOMNESS, 5, cpu)
    public = one.of(key, RANDOMNESS, 5).tolist()
    assert offsets == [0, 3, 7, 10]
    assert views["image"].tolist() == [1, *public[0], 2, 3, *public[1], 4, *public[2]]


def stored(path, images, public=True, kind="image-text", name="mine"):
    with StoreWriter(path, name=name, kind=kind, size=16, public=public) as writer:
        for number, level in enumerate(images):
            captions = ("a caption",) if kind == "image-text" else ()
            writer.add(RecordInput(f"train/{number}", np.full((16, 16, 3), level, np.uint8), captions))
    return RecordStore.open(path)


def assembled(tiny_public, path, **public):
    return build(parse_config({**tiny_public, "public": {"path": str(path), **public}}), RANDOMNESS)


def test_an_opened_public_sets_fingerprint_is_configured(tiny_public, public_store):
    parts = build(parse_config(tiny_public), RANDOMNESS)
    assert parts.learner.public.path == public_store.path and parts.config.public.digest == public_store.contents
    tiny_public["bounding"], tiny_public["public"] = {}, {}
    assert build(parse_config(tiny_public), RANDOMNESS).learner.public is None


def test_a_store_that_is_not_marked_public_is_refused(tiny_public, tmp_path):
    stored(tmp_path / "mine", range(8), public=False)
    with pytest.raises(UserError, match="public-not-marked"):
        assembled(tiny_public, tmp_path / "mine")


def test_images_without_captions_are_refused_if_text_is_read(tiny_public, tmp_path):
    stored(tmp_path / "mine", range(8), kind="image")
    with pytest.raises(UserError, match="public-no-captions"):
        assembled(tiny_public, tmp_path / "mine")


def test_a_store_with_fewer_records_than_join_a_group_is_refused(tiny_public, tmp_path):
    stored(tmp_path / "mine", range(2))
    with pytest.raises(UserError, match="= 3 .* has 2 .*public-few-records"):
        assembled(tiny_public, tmp_path / "mine")
    assert assembled(tiny_public, tmp_path / "mine", records=2).learner.public is not None


def test_fewer_generated_records_than_join_a_group_are_refused(tiny_public):
    raw = {**tiny_public, "public": {"source": "shapes", "generated": 16, "records": 17}}
    with pytest.raises(UserError, match=r"records = 17 .*generated = 16 .*raise public\.generated.*public-few-generated"):
        build(parse_config(raw), RANDOMNESS)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "s3://bucket/store"])
def test_a_path_without_a_store_is_refused(tiny_public, path):
    with pytest.raises(UserError, match="on this machine"):
        assembled(tiny_public, path)


def test_a_store_that_has_changed_is_refused(tiny_public, tmp_path):
    stored(tmp_path / "mine", range(8))
    resolved = resolve_defaults(parse_config({**tiny_public, "public": {"path": str(tmp_path / "mine")}}))
    stored(tmp_path / "other", range(9))
    moved = resolved.public.model_copy(update={"path": str(tmp_path / "other")})
    with pytest.raises(UserError, match="public-changed"):
        resolve_defaults(resolved.model_copy(update={"public": moved}))


@pytest.mark.parametrize("split", ["train", "test"])
def test_images_also_among_private_ones_are_refused_uncounted(tiny_public, tmp_path, shapes, split):
    shared = shapes.images(shapes.split(split)[:2], shapes.size).permute(0, 2, 3, 1).numpy()
    with StoreWriter(tmp_path / "mine", name="mine", kind="image-text", size=shapes.size, public=True) as writer:
        for number in range(6):
            image = shared[number] if number < 2 else np.full((shapes.size, shapes.size, 3), number, np.uint8)
            writer.add(RecordInput(f"other/{number}", image, ("another caption",)))
    with pytest.raises(UserError, match="public-shared-images") as caught:
        assembled(tiny_public, tmp_path / "mine")
    told = str(caught.value).replace(str(tmp_path), "").replace(str(shapes.path), "")
    assert not re.search(r"\d|train/|test/", told)


@pytest.mark.parametrize("shared", range(3))
def test_original_files_of_any_length_are_compared(tmp_path, shared):
    """An image file is as long as it is rich: each length must be looked at."""
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 2**bits, (24, 24, 3), dtype=np.uint8) for bits in (1, 4, 8, 2, 6, 7)]

    def files(name, numbers):
        with StoreWriter(tmp_path / name, name=name, kind="image") as writer:
            for number in numbers:
                content = io.BytesIO()
                Image.fromarray(pictures[number]).save(content, "PNG")
                writer.add(RecordInput(f"{name}/{number}", content.getvalue()))
        return RecordStore.open(tmp_path / name)

    public, private = files("public", (0, 1, 2)), files("private", (3, shared, 4, 5))
    assert share_images(public, private) and not share_images(public, files("others", (3, 4, 5)))


def test_squares_made_otherwise_than_the_model_wants_are_refused(tiny_public, tmp_path):
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "squares", name="squares", kind="image-text", size=16, public=True) as writer:
        for number in range(8):
            image = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            writer.add(RecordInput(str(number), image, ("a caption",)))
    assert RecordStore.open(tmp_path / "squares").resized
    assert assembled(tiny_public, tmp_path / "squares").learner.public is not None
    tiny_public["data"]["resize"] = "pad"
    with pytest.raises(UserError, match="resize 'pad'.*view-made-squares"):
        assembled(tiny_public, tmp_path / "squares")


def test_a_store_exchanged_after_the_run_settled_is_not_opened(tiny_public, public_store, tmp_path, shapes):
    resolved = resolve_defaults(parse_config(tiny_public))
    moved = resolved.public.model_copy(update={"path": str(stored(tmp_path / "other", range(8)).path)})
    with pytest.raises(UserError, match="public-changed"):
        open_public(moved, resolved.data, shapes, True, "bicubic")


def test_generated_public_records_are_no_others(tmp_path):
    private = shapes_store(64, tmp_path, test=10)
    config = PublicConfig(source="shapes", generated=64, records=3)
    data = parse_config({"data": {"stores": str(tmp_path), "size": 32}}).data
    public = open_public(config, data, private, True, "bicubic")
    assert public_fingerprint(config) is None and len(public) == 64 and not share_images(public, private)
    assert public.path != private.path
    write_shapes(tmp_path / "half", 20, 0, 0, half="first")
    half = open_public(config.model_copy(update={"half": "first"}), data, private, True, "bicubic")
    assert half.path != public.path and not share_images(half, RecordStore.open(tmp_path / "half"))


def test_procedural_public_records_fit_the_run_and_are_not_of_it(tmp_path):
    tree = {
        "data": {"source": "procedural", "records": 32, "size": 16, "stores": str(tmp_path)},
        "model": {"kind": "image-text", "width": 8},
        "bounding": {"method": "public"},
        "public": {"source": "procedural", "generated": 20},
        "privacy": {"epsilon": 4.0, "accountant": "rdp", "batch": 8, "steps": 2},
    }
    config = resolve_defaults(parse_config(tree))
    private = records_of(config)
    public = public_records_of(config, private)
    assert public.public and public.size == private.size == 16 and public.training_records == len(public) == 20
    assert not share_images(public, private) and public_fingerprint(config.public) is None
