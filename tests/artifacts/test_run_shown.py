"""What a run says of itself where a program or a notebook shows it."""

import pytest

import dpfed
from dpfed.artifacts.directory import RunDirectory
from dpfed.errors import UserError


@pytest.mark.long
def test_a_finished_run_shows_epsilon_figures_and_folder(tiny_config, tmp_path):
    run = dpfed.pretrain(tiny_config, tmp_path / "run")
    assert 0 < run.epsilon <= 8
    said = repr(run)
    assert str(tmp_path / "run") in said and "epsilon " in said and "delta " in said
    assert "image_to_text_R@10" in said and "before training" in said
    run.results.write_text("{}")
    assert repr(run) == f"RunDirectory({str(run.path)!r}, damaged)"


NONE = {"bounding": {"method": "none", "group_size": 4}, "privacy": {"batch": 60, "steps": 2}}


@pytest.mark.parametrize("changes", [{"privacy": {"epsilon": 8.0, "batch": 60, "steps": 2, "seed": 3}}, NONE])
def test_a_run_without_a_guarantee_shows_no_epsilon(tiny, tmp_path, changes):
    tiny |= changes
    assert "no privacy guarantee" in repr(dpfed.pretrain(dpfed.parse_config(tiny), tmp_path / "run"))


def test_an_unfinished_run_says_so_and_what_it_spent(tiny_config, tmp_path):
    class Stops(dpfed.Callback):
        every = 1

        def on_step(self, step):
            if step.done == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfed.pretrain(tiny_config, tmp_path / "run", callbacks=[Stops()])
    run = RunDirectory.open(tmp_path / "run")
    assert "unfinished" in repr(run) and 0 < run.epsilon < 8
    nothing = RunDirectory(tmp_path / "nothing")
    assert "no run is there" in repr(nothing) and nothing.epsilon is None


@pytest.mark.parametrize("spent", ['"8"', "true", "NaN", "-1", "Infinity", None])
def test_what_is_no_epsilon_is_not_shown_as_one(tmp_path, spent):
    run = RunDirectory(tmp_path)
    run.results.write_text('{"privacy": {}}' if spent is None else f'{{"privacy": {{"epsilon": {spent}}}}}')
    with pytest.raises(UserError, match="run-json-damaged"):
        _ = run.epsilon
    assert repr(run).endswith("damaged)")
