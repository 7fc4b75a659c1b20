"""The command as people use it: real processes, exit codes, one sentence for a mistake, JSON for scripts."""

import json
import re
import sys

import pytest
import tomli_w

from dpfed.cli import main
from dpfed.config import parse_config
from dpfed.runs import pretraining, running
from dpfed.training.coordinator import Coordinator
from tests.patience import run_to_end


def in_a_process(*arguments, **options):
    command = [sys.executable, "-m", "dpfed", *map(str, arguments)]
    return run_to_end(command, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory, shapes):
    """One finished run of the command."""
    folder = tmp_path_factory.mktemp("cli")
    config = {
        "name": "tiny",
        "data": {"source": "store", "path": str(shapes.path), "size": 16},
        "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
        "bounding": {"engine": "loop"},
        "privacy": {"epsilon": 8.0, "accountant": "rdp", "batch": 60, "steps": 4},
        "evaluation": {"records": 60, "bank": 60},
    }
    (folder / "tiny.toml").write_text(parse_config(config).dump())
    result = in_a_process("pretrain", folder / "tiny.toml", "--run", folder / "run", "--set", "privacy.steps=5")
    assert result.returncode == 0, result.stderr
    return folder, result


def test_pretrain_leaves_the_documented_layout_and_a_table(run):
    folder, result = run
    names = {path.name for path in (folder / "run").iterdir()} - {".lock", ".lock-holder"}
    assert names == {
        "config.toml", "ledger.jsonl", "metrics.jsonl", "results.json", "privacy_card.md", "report.html", "checkpoints",
        "provenance.json",
        "for_the_board.html",
        "model",
        "gallery",
    }  # fmt: skip
    results = json.loads((folder / "run" / "results.json").read_text())
    assert results["privacy"]["epsilon"] <= 8 and results["privacy"]["steps_charged"] == 5
    assert {item["model"] for item in results["evaluations"]} == {"trained", "untrained"}
    known = {"name", "value", "model", "split", "protocol", "step", "queries", "interval"}  # no outcome of a single query
    assert all(set(item) - {"change", "chance"} == known for item in results["evaluations"])
    for expected in ("epsilon", "image_to_text_R@10", "report.html", "privacy_card.md", "model"):
        assert expected in result.stdout
    several = [name for item in results["evaluations"] if "[" in (name := item["name"])]  # of several labels: [shape], [color]
    assert several  # the terminal shows the two figures that count, results.json all


def test_a_finished_run_needs_no_cluster_and_no_federation(run, dpfed):
    folder, before = run
    table = before.stdout[before.stdout.index("tiny: epsilon") :]
    for more in ((), ("--cluster", "ray", "--workers", "2")):
        code, shown, error = dpfed("resume", folder / "run", *more)
        assert code == 0, error
        assert shown.startswith(f"{folder / 'run'} is finished; these are its results") and shown.endswith(table)
        assert "Ray" not in shown and "resuming" not in shown
    code, shown, error = dpfed("pretrain", folder / "run" / "config.toml", "--run", folder / "run", "--resume")
    assert code == 0 and "is finished; these are its results" in shown, error
    other = ("--set", "privacy.steps=6")
    code, shown, error = dpfed("pretrain", folder / "run" / "config.toml", "--run", folder / "run", "--resume", *other)
    assert code == 2 and "is finished" not in shown and "privacy.steps = 5, and the configuration now says 6" in error
    code, shown, error = dpfed("federation", "demo", folder / "run" / "config.toml", "--run", folder / "run")
    assert code == 0 and "is finished; these are its results" in shown and shown.endswith(table), error


@pytest.mark.long
def test_evaluate_and_report_of_a_run(run, dpfed):
    folder, _ = run
    code, again, error = dpfed("evaluate", folder / "run", "--json")
    assert code == 0, error
    before = json.loads((folder / "run" / "results.json").read_text())["evaluations"]
    figures = {(item["name"], item["model"]): item["value"] for item in json.loads(again)}
    assert figures == pytest.approx({(item["name"], item["model"]): item["value"] for item in before if item["step"] in (0, 5)})
    _, shown, _ = dpfed("evaluate", folder / "run", "--task", "retrieval")
    assert all(name in shown for name, _ in figures if "R@" in name)
    assert dpfed("report", folder / "run")[0] == 0
    assert dpfed("report", folder / "run", folder / "run", "--out", folder / "both.html")[0] == 0
    assert (folder / "both.html").exists()


@pytest.mark.long
def test_a_refused_measurement_names_the_options_of_its_command(run, dpfed):
    """There is no --set here: the configuration of a run that is there stays."""
    folder, _ = run
    for wrong, code_of in (("--split validation", "eval-empty"), ("--task zero_shot", "")):
        code, _, error = dpfed("evaluate", folder / "run", *wrong.split())
        assert code == (2 if code_of else 0) and "--set" not in error and code_of in error
        if code_of:
            assert f"`dpfed evaluate {folder / 'run'} --split SPLIT --task TASK`" in " ".join(error.split())
    code, _, error = dpfed("evaluate", folder / "run", "--split", "test", "--task", "retrieval")
    assert code == 0, error


def test_a_card_and_a_run_in_the_wrong_order(run, dpfed):
    folder, _ = run
    where, card = folder / "run", folder / "run" / "privacy_card.md"
    code, _, error = dpfed("privacy", "verify", where, card)
    assert code == 2 and "run-card-swapped" in error
    command = re.search("`dpfed (privacy verify [^`]*)`", " ".join(error.split()))[1]
    assert command.split() == ["privacy", "verify", str(card), str(where)]
    assert dpfed(*command.split())[0] == 0
    code, _, error = dpfed("resume", card)
    assert code == 2 and "it is a file; give the folder of a run" in " ".join(error.split()) and "starts a run" not in error


def test_the_encoder_loads_back(run):
    import torch

    import dpfed as library

    encoder = library.load(run[0] / "run")
    assert encoder.features(torch.randint(0, 256, (3, 3, 20, 20), dtype=torch.uint8)).shape[0] == 3
    assert torch.allclose(encoder.embed_text(["a small red circle"]).norm(dim=1), torch.ones(1), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "method", "said"),
    [
        (Coordinator, "apply", "stopped after step {done}; `dpfed resume run` resumes"),
        (running, "hold", "stopped before the first step; `dpfed resume run` resumes"),
        (pretraining, "create_job", "stopped."),
    ],
)
def test_ctrl_c_says_how_far_a_run_came_and_what_goes_on(tiny, dpfed, tmp_path, monkeypatch, owner, method, said):
    real, calls = getattr(owner, method), []

    def interrupted(*given, **named):
        calls.append(None)
        if len(calls) == (5 if method == "apply" else 1):
            raise KeyboardInterrupt
        return real(*given, **named)

    tiny["training"]["checkpoint_every"] = 100
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(tiny))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, interrupted)
        code, _, error = dpfed("pretrain", "tiny.toml", "--run", "run")
    assert (code, error.splitlines()[-1]) == (130, said.format(done=4))
    if method == "apply":
        code, out, _ = dpfed("resume", "run")
        assert code == 0 and "charged steps, replayed: 1" in out and out.count("private steps: 6") == 1


def test_calibrate_gives_the_json_that_scripts_read(dpfed):
    plan = ("--records", 60000, "--batch", 2048, "--steps", 1200)
    figures = json.loads(dpfed("privacy", "calibrate", *plan, "--epsilon", 10, "--json")[1])
    assert set(figures) == {"rdp", "pld", "delta"} and set(figures["pld"]) == {"noise_multiplier", "epsilon"}
    assert figures["rdp"]["noise_multiplier"] == pytest.approx(0.967, abs=0.005)
    assert figures["pld"]["noise_multiplier"] == pytest.approx(0.928, abs=0.005)
    back = dpfed("privacy", "account", *plan, "--noise-multiplier", figures["pld"]["noise_multiplier"], "--json")[1]
    assert json.loads(back)["pld"]["epsilon"] == pytest.approx(figures["pld"]["epsilon"])


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["pretrain", "nowhere.toml"], "nowhere.toml"),
        (["pretrain", "{config}", "--run", "{run}"], "run-in-use"),
        (["pretrain", "{config}", "--set", "privacy.epsilon=0"], "epsilon"),
        (["pretrain", "{config}", "--set", "privacy.epsilom=1"], "did you mean 'epsilon'"),
        (["pretrain", "{config}", "--set", "privacy.batch=601"], "600"),
        (["pretrain", "{config}", "--set", "bounding.group_size=61"], "60"),
        (["pretrain", "{config}", "--set", "bounding.clip_norm=0"], "clip_norm"),
        (["pretrain", "{config}", "--set", "data.path=/nowhere/at/all"], "/nowhere/at/all"),
        (["pretrain", "{config}", "--set", "data.source=parqet"], "parquet"),
        (["pretrain", "{config}", "--set", "evaluation.split=validation"], "validation"),
        (["resume", "nowhere"], "nowhere"),
        (["evaluate", "nowhere"], "nowhere"),
        (["evaluate", "{run}", "--split", "validation"], "validation"),
        (["report", "nowhere"], "nowhere"),
        (["data", "import", "nowhere", "{folder}/x"], "nowhere"),
        (["data", "inspect", "nowhere"], "nowhere"),
        (["privacy", "calibrate", "--records", "10", "--batch", "20", "--steps", "5", "--epsilon", "1"], "batch"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_code_2_and_nothing_written(run, tmp_path, monkeypatch, capsys, arguments, fact):
    folder, _ = run
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = {"config": folder / "tiny.toml", "run": folder / "run", "folder": tmp_path}
    filled = [argument.format(**names) for argument in arguments]
    if "pretrain" in filled and "--run" not in filled:
        filled += ["--run", tmp_path / "new"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dpfed", *map(str, filled)])
    with pytest.raises(SystemExit) as stopped:  # in this process: importing torch 17 times would take a minute
        main()
    assert stopped.value.code == 2
    complaint = capsys.readouterr().err
    assert fact in complaint and complaint.startswith("error: ") and complaint.count("\n") == 1
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_mistake_shows_no_traceback_in_a_real_process(tmp_path):
    result = in_a_process("pretrain", "nowhere.toml", cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == "" and "Traceback" not in result.stderr


def test_help_names_every_command(dpfed):
    text = dpfed("--help")[1]
    assert all(name in text for name in ("pretrain", "resume", "evaluate", "report", "privacy", "data"))
    assert "import" in dpfed("data", "--help")[1]


def test_import_and_inspect(tmp_path, dpfed):
    from PIL import Image

    for number in range(12):
        folder = tmp_path / "pictures" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 24), (number * 20, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "pictures" / "cat" / "broken.png").write_bytes(b"not an image")
    taken = ("data", "import", tmp_path / "pictures", tmp_path / "store")
    code, _, error = dpfed(*taken)
    assert code == 2 and "broken.png" in error and not (tmp_path / "store").exists()
    code, done, _ = dpfed(*taken, "--size", 16, "--validation", 2, "--skip-broken")
    assert code == 0 and "broken.png" in done
    facts = json.loads(dpfed("data", "inspect", tmp_path / "store", "--json")[1])
    assert facts["records"] == {"train": 10, "validation": 2, "test": 0} and facts["left_out"] == 1
