"""A model that leaves its run tells nothing of how long training took."""

import json
import os
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard

import dpfed
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness
from dpfed.runs.directory import RunDirectory
from dpfed.runs.export import export_model
from dpfed.runs.pretraining import pretrain


def test_a_copy_has_none_of_the_times_of_the_run(tmp_path):
    config = parse_config({"name": "short", "privacy": {"epsilon": 8.0}})
    run = RunDirectory.create(tmp_path / "run", config, Randomness.from_seed(0))
    (run.model / "inner").mkdir(parents=True)
    for path in (run.results, run.model / "weights", run.model / "inner" / "words"):
        path.write_text("{}")
    long_ago = 1_000_000_000
    for path in (*run.model.rglob("*"), run.model):
        os.utime(path, (long_ago, long_ago))
    export_model(run.path, tmp_path / "out")
    copied = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert len(copied) == 4
    assert all(path.stat().st_mtime > long_ago + 1 and path.stat().st_atime > long_ago + 1 for path in copied)


class TestHub:
    """A folder for the Hugging Face hub."""

    @staticmethod
    def page(run, tmp_path, **options):
        export_model(run.path, tmp_path / "hub", hub=True, **options)
        content = (tmp_path / "hub" / "README.md").read_text()
        metadata = yaml.safe_load(content.split("---\n")[1])
        return content, metadata

    def test_the_card_is_inside_the_page_and_the_metadata_says_the_same(self, tiny, tmp_path):
        run = pretrain(parse_config({**tiny, "name": "a <b>*model*</b>"}), tmp_path / "run")
        content, metadata = self.page(run, tmp_path, license="cc-by-nc-4.0")
        results = json.loads(run.results.read_text())["privacy"]
        assert metadata["license"] == "cc-by-nc-4.0" and metadata["library_name"] == "dpfed"
        assert metadata["pipeline_tag"] == "zero-shot-image-classification" and "differential-privacy" in metadata["tags"]
        assert metadata["privacy"] == {
            "guarantee": True,
            "accountant": "pld",
            "unit": "record",
            **{name: results[name] for name in ("epsilon", "delta")},
        }
        for line in run.card.read_text().splitlines():
            assert line.lstrip("#") in content
        assert "<b>" not in content.split("## Privacy card")[0] and content.count("\n# ") == 1
        assert "features" in dir(dpfed.load(tmp_path / "hub"))
        ModelCard(content)  # the hub's own reading of the page
        assert ModelCard(content).data.privacy == metadata["privacy"]

    def test_figures_of_private_records_are_not_on_it_and_those_of_public_ones_are(self, tiny, tmp_path):
        run = pretrain(parse_config(tiny), tmp_path / "run")
        _, metadata = self.page(run, tmp_path)
        shown = {item["metrics"][0]["type"]: item["metrics"][0]["value"] for item in metadata["model-index"][0]["results"]}
        trained = {
            item["name"]: item["value"]
            for item in json.loads(run.results.read_text())["evaluations"]
            if item["model"] == "trained"
        }
        assert "image_to_text_R@10" in shown
        assert all(abs(value - trained[name]) < 1e-4 for name, value in shown.items() if not name.endswith("rank"))
        shutil.rmtree(tmp_path / "hub")
        facts = json.loads((run.path / "provenance.json").read_text())
        facts["data"]["keyed"] = True
        (run.path / "provenance.json").write_text(json.dumps(facts))
        content, metadata = self.page(run, tmp_path)
        assert "model-index" not in metadata and "no epsilon covers them" in content
        assert not any(str(round(value, 4)) in content for value in shown.values())

    def test_a_run_without_a_guarantee_says_so_first(self, tiny, tmp_path):
        tree = {**tiny, "bounding": {**tiny["bounding"], "method": "none"}, "privacy": {"batch": 60, "steps": 2}}
        content, metadata = self.page(pretrain(parse_config(tree), tmp_path / "run"), tmp_path)
        assert metadata["privacy"] == {"guarantee": False} and "differential-privacy" not in metadata["tags"]
        assert "**Trained without a guarantee of privacy.**" in content

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"license": "mit"}, "add --hub"),
            ({"hub": True, "license": "my own: licence\n"}, "expected a name that the hub knows"),
            ({"hub": True, "adapters": True}, "leave one out"),
            ({"transformers": True}, "transformers reads CLIP models"),
        ],
    )
    def test_what_does_not_fit_is_refused_and_nothing_is_written(self, tiny, tmp_path, options, sentence):
        tiny["privacy"]["steps"] = 1
        run = pretrain(parse_config(tiny), tmp_path / "run")
        with pytest.raises(UserError, match=sentence):
            export_model(run.path, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
