"""`dpfed federation plan`: a coordinator chooses a plan from how many records its sites have."""

import json

import pytest

from dpfed.automatic.federation import plan_federation
from dpfed.automatic.request import Request
from dpfed.config import load_config
from tests.automatic.random_pictures import pictures


@pytest.mark.long
def test_a_plan_is_that_of_all_sites_records_together(dpfed, tmp_path):
    file = tmp_path / "plan.toml"
    words = ("--records", "3000,1200,800", "--epsilon", "3", "--captions", "--save-config", file)
    code, said, _ = dpfed("federation", "plan", *words, "--json")
    assert code == 0
    facts = json.loads(said.splitlines()[-1])
    assert facts["records"] == 5_000
    assert 'trust = "secure"' in facts["choices"][0]["value"]
    assert facts["seconds"] is None
    config = load_config(file)
    assert config.privacy.epsilon == 3
    assert config.model.kind == "image-text"
    assert config.privacy.batch == 1_000


@pytest.mark.long
def test_two_sites_get_no_masks_that_each_could_take_off():
    chosen = plan_federation(Request("", 8.0), [400, 600], captions=False)
    assert 'trust = "distributed"' in chosen.choices[0].value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--records", "3000", "--epsilon", "8"), "two sites or more"),
        (("--records", "0,5000", "--epsilon", "8"), "two sites or more"),
        (("--records", "30,40", "--epsilon", "8"), "too few"),
        (("--records", "many", "--epsilon", "8"), "whole numbers with commas"),
        (("--records", "3000,800", "--epsilon", "0"), "expected a positive number"),
        (("--records", "3000,800", "--epsilon", "8", "--model", "magic"), "expected timm/NAME"),
    ],
)
def test_what_is_no_federation_is_one_sentence(dpfed, words, said):
    code, _, error = dpfed("federation", "plan", *words)
    assert code == 2
    assert said in error


@pytest.mark.parametrize("captions", [(), ("--captions",)])
def test_a_saved_plan_of_no_own_records_makes_kits(dpfed, tmp_path, captions):
    words = ("--records", "3000,1200,800", "--epsilon", "3", *captions, "--save-config", tmp_path / "plan.toml")
    code, said, _ = dpfed("federation", "plan", *words)
    assert code == 0
    assert ("next: dpfed start" in said) == (not captions)  # weights that the sites start from
    project = tmp_path / "project.toml"
    project.write_text('name = "chest"\nconfig = "plan.toml"\nhost = "127.0.0.1"\nsites = ["a", "b", "c"]\ntrust = "secure"\n')
    assert dpfed("federation", "provision", project)[0] == 0
    assert len(list((tmp_path / "chest" / "kits").iterdir())) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "nowhere"), "no record store at"),
        (("--data", "store", "--captions"), "holds image records"),
        (("--public", "nowhere"), "no record store at"),
        (("--public", "store"), "not marked public"),
    ],
)
def test_a_store_of_a_plan_must_be_there_and_fit(dpfed, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "photos", 0, count=4)
    assert dpfed("data", "import", "photos", "store")[0] == 0
    code, _, error = dpfed("federation", "plan", "--records", "3000,800", "--epsilon", "8", *words)
    assert code == 2
    assert said in error


@pytest.mark.long
def test_only_records_that_are_held_out_are_evaluated(tmp_path, dpfed):
    photos = pictures(tmp_path / "photos", 0)
    for held, split in ((0, "none"), (20, "validation")):
        store = tmp_path / f"store-{held}"
        assert dpfed("data", "import", photos, store, "--validation", str(held))[0] == 0
        assert plan_federation(Request(store, 8.0), [300, 400], captions=False).config.evaluation.split == split
