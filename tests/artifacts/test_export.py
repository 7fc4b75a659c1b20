"""A model that leaves its run tells nothing of how long training took."""

import json
import os
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard

import dpfed as library
from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.export import export_model
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness
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


@pytest.fixture
def written(tmp_path):
    """A finished run whose files hold next to nothing."""
    config = parse_config({"name": "short", "privacy": {"epsilon": 8.0}})
    run = RunDirectory.create(tmp_path / "run", config, Randomness.from_seed(0))
    run.results.write_text("{}")
    return run


def test_files_that_the_file_system_left_in_the_model_are_not_exported(written, tmp_path):
    (written.model / "text").mkdir(parents=True)
    for name in ("weights", ".DS_Store", "._weights", ".nfs0001", "text/words", "text/.DS_Store"):
        (written.model / name).write_text("{}")
    assert [path.name for path in export_model(written.path, tmp_path / "out")] == ["text", "weights"]
    assert [path.name for path in (tmp_path / "out" / "text").iterdir()] == ["words"]


@pytest.mark.parametrize("hub", [False, True])
def test_a_run_whose_model_is_gone_is_named(written, tmp_path, hub):
    with pytest.raises(UserError, match=f"{written.model} is missing.*export-no-model"):
        export_model(written.path, tmp_path / "out", hub=hub)


TREE = {
    "name": "tiny",
    "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
    "bounding": {"group_size": 4, "engine": "loop", "microbatch": 32},
    "training": {"device": "cpu"},
    "evaluation": {"tasks": ["retrieval"], "every": 0, "records": 100},
}


@pytest.fixture(scope="module")
def finished(shapes, tmp_path_factory):
    """A finished run on public records."""
    data, privacy = {"source": "store", "path": str(shapes.path), "size": 16}, {"epsilon": 8.0, "batch": 60, "steps": 2}
    return pretrain(parse_config({**TREE, "data": data, "privacy": privacy}), tmp_path_factory.mktemp("export") / "run")


class TestHub:
    """A folder for the Hugging Face hub."""

    @staticmethod
    def page(run, dest, **options):
        export_model(run.path, dest, hub=True, **options)
        content = (dest / "README.md").read_text()
        return content, yaml.safe_load(content.split("---\n")[1])

    @pytest.mark.long
    def test_the_card_is_in_the_page_and_in_the_metadata(self, finished, tmp_path):
        content, metadata = self.page(finished, tmp_path / "hub", license="cc-by-nc-4.0")
        results = json.loads(finished.results.read_text())["privacy"]
        assert metadata["license"] == "cc-by-nc-4.0" and metadata["library_name"] == "dpfed"
        assert metadata["pipeline_tag"] == "zero-shot-image-classification" and "differential-privacy" in metadata["tags"]
        assert metadata["privacy"] == {
            "guarantee": True,
            "accountant": "pld",
            "unit": "record",
            **{name: results[name] for name in ("epsilon", "delta")},
        }
        for line in finished.card.read_text().splitlines():
            assert line.lstrip("#") in content
        assert content.count("\n# ") == 1
        assert library.load(tmp_path / "hub").features
        assert ModelCard(content).data.to_dict()["privacy"] == metadata["privacy"]  # the hub's own reading of the page

    # A private record store; private records of the user's own, whose fingerprint has no key and is not written.
    @pytest.mark.parametrize("data", [{"keyed": True}, {"keyed": False, "fingerprint": None}])
    def test_public_records_figures_are_on_it_private_ones_are_not(self, finished, tmp_path, data):
        _, metadata = self.page(finished, tmp_path / "public")
        [result] = metadata["model-index"][0]["results"]
        shown = {metric["type"]: metric["value"] for metric in result["metrics"]}
        evaluations = json.loads(finished.results.read_text())["evaluations"]
        trained = {item["name"]: item["value"] for item in evaluations if item["model"] == "trained"}
        assert "image_to_text_R@10" in shown
        assert all(abs(value - trained[name]) < 1e-4 for name, value in shown.items())
        private = tmp_path / "run"
        shutil.copytree(finished.path, private)
        facts = json.loads((private / "provenance.json").read_text())
        (private / "provenance.json").write_text(json.dumps({**facts, "data": {**facts["data"], **data}}))
        content, metadata = self.page(RunDirectory.open(private), tmp_path / "private")
        assert "model-index" not in metadata and "no epsilon covers them" in content and "R@10" not in content

    def test_a_run_without_figures_does_not_announce_them(self, finished, tmp_path):
        run = RunDirectory(shutil.copytree(finished.path, tmp_path / "run"))
        run.results.write_text(json.dumps({**json.loads(run.results.read_text()), "evaluations": []}))
        content, metadata = self.page(run, tmp_path / "hub")
        assert "model-index" not in metadata and "measured no evaluation figures" in content

    def test_a_run_without_a_guarantee_says_so_first(self, finished, tmp_path):
        run = tmp_path / "run"
        shutil.copytree(finished.path, run)
        results = json.loads((run / "results.json").read_text())
        (run / "results.json").write_text(json.dumps({**results, "privacy": {**results["privacy"], "guarantee": False}}))
        (run / "privacy_card.md").rename(run / "no_privacy_card.md")
        content, metadata = self.page(RunDirectory.open(run), tmp_path / "hub")
        assert metadata["privacy"] == {"guarantee": False} and "differential-privacy" not in metadata["tags"]
        assert "**Trained without a guarantee of privacy.**" in content

    def test_a_run_without_its_card_is_refused(self, finished, tmp_path):
        run = RunDirectory(shutil.copytree(finished.path, tmp_path / "run"))
        run.card.unlink()
        with pytest.raises(UserError, match=r"privacy_card.md.*run-file-unreadable"):
            self.page(run, tmp_path / "hub")

    @pytest.mark.parametrize("key", ["name", "privacy.guarantee", "privacy.accountant"])
    def test_results_without_a_key_of_the_page_are_refused(self, finished, tmp_path, key):
        run = RunDirectory(shutil.copytree(finished.path, tmp_path / "run"))
        results = json.loads(run.results.read_text())
        place, _, name = key.rpartition(".")
        del (results[place] if place else results)[name]
        run.results.write_text(json.dumps(results))
        with pytest.raises(UserError, match=f"lacks '{key}'.*export-results-lack"):
            self.page(run, tmp_path / "hub")

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [({"license": "mit"}, "export-license-unused"), ({"hub": True, "license": "my own: licence\n"}, "export-license-odd")],
    )
    def test_what_does_not_fit_is_refused_and_nothing_is_written(self, finished, tmp_path, options, sentence):
        with pytest.raises(UserError, match=sentence):
            export_model(finished.path, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
