"""What TensorBoard, W&B and MLflow get of a run: figures that are released, each once, and nothing private."""

import json
import os
import pickle
import re
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest

import dpfed
from dpfed.artifacts.directory import RunDirectory
from dpfed.callbacks import MLflow, StepSummary, TensorBoard, WandB, trackers
from dpfed.callbacks.tracker import sendable
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from tests.callbacks.event_files import boards, history, records, texts
from tests.conftest import tiny_tree

# They are looked for, and not yet imported: every process of a session reads this file, and one runs it.
pytestmark = pytest.mark.skipif(not all(map(find_spec, ("tensorboard", "wandb", "mlflow"))), reason="needs all trackers")
KINDS = ("training/", "progress/", "evaluation/")
NAMES = ("training/epsilon", "training/learning_rate", "training/noisy_gradient_norm")


def leave_alone(patch, folder):
    """No account, no server, and no folder but this one."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        patch.delenv(name)
    patch.setenv("HOME", str(folder / "home"))
    patch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        patch.setenv(name, str(folder / "home" / name))
    patch.chdir(folder)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    leave_alone(monkeypatch, tmp_path)


def config_of(tree):
    tree["training"] |= {"checkpoint_every": 4}
    return dpfed.parse_config(tree)


@pytest.fixture
def config(tiny):
    return config_of(tiny)


@pytest.fixture(scope="module")
def finished(shapes, tmp_path_factory):
    """A run with all trackers that nobody interrupted; tests only read it."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        leave_alone(patch, folder)
        return dpfed.pretrain(config_of(tiny_tree(shapes)), folder / "run", callbacks=all_trackers())


class Stops(dpfed.Callback):
    """Interrupts a run once."""

    every = 1

    def __init__(self, at):
        self._at = at

    def on_step(self, step):
        if step.done == self._at:
            self._at = None
            raise KeyboardInterrupt


def all_trackers():
    return trackers("tensorboard,wandb,mlflow")


def interrupted(config, folder, at=5):
    """A run that is interrupted after a step, with its last checkpoint before it, and resumed with new trackers."""
    with pytest.raises(KeyboardInterrupt):
        dpfed.pretrain(config, folder, callbacks=[*all_trackers(), Stops(at)])
    return dpfed.resume(folder, callbacks=all_trackers())


def metrics(run):
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def expected(run):
    """Name, step and value of all that a tracker should have, from the run's own file."""
    points = {}
    for line in metrics(run):
        if "evaluation" in line:
            points[f"evaluation/{line['evaluation']['name']}", line["step"]] = line["evaluation"]["value"]
        else:
            points |= {(name, line["step"]): line[name.removeprefix("training/")] for name in NAMES}
    return points


def on_tensorboard(run):
    board = boards(run.path / "tensorboard")
    points = [(tag, point) for tag in board.Tags()["scalars"] for point in board.Scalars(tag)]
    assert all(point.wall_time == point.step for _, point in points)
    return [((tag, point.step), point.value) for tag, point in points]


def wandb_files(run):
    return sorted(run.path.glob("wandb/offline-run-*/run-*.wandb"))


def on_wandb(run):
    rows = [row for file in wandb_files(run) for row in history(file)]
    return [((name, row["_step"]), value) for row in rows for name, value in row.items() if name.startswith(KINDS)]


def mlflow_run(run):
    from mlflow import MlflowClient

    client = MlflowClient((run.path.parent / "mlruns").as_uri())
    (tracked,) = client.search_runs([client.get_experiment_by_name("dpfed").experiment_id])
    return client, tracked


def on_mlflow(run):
    client, tracked = mlflow_run(run)
    points = [point for name in tracked.data.metrics for point in client.get_metric_history(tracked.info.run_id, name)]
    assert all(point.timestamp == point.step + 1 for point in points)
    return [((point.key.replace("_at_", "@"), point.step), point.value) for point in points]


@pytest.mark.long
@pytest.mark.parametrize("at", [None, pytest.param(2, marks=pytest.mark.slow), 5])
def test_every_figure_reaches_every_tracker_once(config, tmp_path, request, at):
    run = interrupted(config, tmp_path / "run", at) if at else request.getfixturevalue("finished")
    wanted = expected(run)
    assert {step for _, step in wanted} == set(range(7))  # step 0: the model before training
    for got in (on_tensorboard(run), on_wandb(run), on_mlflow(run)):
        assert sorted(key for key, _ in got) == sorted(wanted)
        assert {key: pytest.approx(value, rel=1e-6) for key, value in got} == wanted


@pytest.mark.long
def test_the_card_and_public_pictures_come_at_the_end(finished):
    run = finished
    card, shown = run.card.read_text(), sorted(run.gallery.glob("*.png"))
    assert shown
    board = boards(run.path / "tensorboard")
    assert texts(board)["privacy card/text_summary"] == card
    assert len(board.Tags()["images"]) == len(shown)
    (file,) = wandb_files(run)
    assert [record.artifact.type for record in records(file) if record.HasField("artifact")] == ["privacy-card"]
    assert [row["gallery/count"] for row in history(file) if "gallery/count" in row] == [len(shown)]
    client, tracked = mlflow_run(run)
    assert tracked.info.status == "FINISHED"
    assert {item.path for item in client.list_artifacts(tracked.info.run_id)} == {"privacy_card.md", "gallery"}
    assert len(client.list_artifacts(tracked.info.run_id, "gallery")) == len(shown)


@pytest.mark.long
def test_a_window_of_private_metrics_is_a_row(tiny, tmp_path):
    tiny |= {"diagnostics": "private", "progress": {"phase": 3}}
    run = dpfed.pretrain(dpfed.parse_config(tiny), tmp_path / "run", callbacks=[TensorBoard()])
    windows = {line["step"]: line["phase"]["loss"] for line in metrics(run) if "phase" in line}
    board = boards(run.path / "tensorboard")
    assert {point.step: pytest.approx(point.value, rel=1e-5) for point in board.Scalars("progress/loss")} == windows


@pytest.fixture
def clinic(tiny, tmp_path):
    """The same over private records, in a place whose name must not get out."""
    place = tmp_path / "ward-seven"
    with StoreWriter(place, name="records", kind="image-text", size=16, public=False) as writer:
        for number in range(120):
            pixels = dpfed.RecordStore.open(tiny["data"]["path"]).images([number], 16, "crop", "bilinear")[0]
            image = pixels.permute(1, 2, 0).numpy()
            writer.add(RecordInput(f"patient-{number}", image, ("lesion",) if number % 2 else ("scar",), split="train"))
    tiny["data"] |= {"path": str(place), "stores": str(tmp_path / "cellar")}
    tiny["evaluation"] = {"split": "none"}
    tiny["privacy"] |= {"batch": 32}
    return tiny


def sent(run):
    """All bytes of what trackers keep to be shown or sent, and not W&B's own logs, which stay on the machine."""
    places = [run.path / "tensorboard", run.path.parent / "mlruns"]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    logged = [str(record) for file in wandb_files(run) for record in records(file) if not record.HasField("artifact")]
    names = [str(file.relative_to(run.path.parent)) for file in files]
    # MLflow itself notes where its own files lie.
    contents = [file.read_bytes().decode(errors="replace") for file in files if file.name != "meta.yaml"]
    return "\n".join([*names, *contents, *logged])


@pytest.mark.long
def test_nothing_private_leaves(clinic, tmp_path):
    clinic["privacy"]["seed"] = 987_654_321
    del clinic["data"]["stores"]
    run = interrupted(dpfed.parse_config(clinic), tmp_path / "run")
    told = sent(run)
    assert "privacy.epsilon" in told and "no privacy guarantee" in told
    secrets = ["ward-seven", "patient-", "lesion", "scar", "987654321", str(tmp_path), os.environ.get("USER", "nobody-here")]
    for secret in [*secrets, "secret.key", "pytest", "gallery/"]:
        assert secret not in told, secret
    assert not run.gallery.exists()
    _, tracked = mlflow_run(run)
    assert (
        not [tag for tag in tracked.data.tags if tag not in ("dpfed.run", "mlflow.runName")] and tracked.info.user_id != "root"
    )
    for record in (record for file in wandb_files(run) for record in records(file)):
        assert not record.HasField("output_raw") and not record.HasField("stats") and not record.HasField("environment")
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", str(record))  # random ids hold short names


def test_parameters_are_the_configuration_without_paths(finished):
    folder = str(finished.path.parent)
    _, tracked = mlflow_run(finished)
    assert tracked.data.params["privacy.epsilon"] == "8.0" and tracked.data.params["bounding.group_size"] == "4"
    assert not {"data.path", "data.stores", "public.path"} & tracked.data.params.keys()
    assert not [value for value in tracked.data.params.values() if "/tmp" in value or folder in value]


def test_keys_that_say_where_something_lies_are_kept_back():
    from dpfed.config import Config
    from dpfed.files.toml_file import leaves

    given = {key: "/there" for key in leaves(Config().model_dump())}
    assert sendable(given) == {}
    assert sendable({"data.path": "clinic", "data.stores": "stores", "public.path": "p", "privacy.seed": 3}) == {}
    assert sendable({"data.options.root": "clinic", "data.options.year": 2024}) == {}
    kept = {"model.image": "timm/vit_tiny", "privacy.epsilon": 8.0, "views.crop_scale": [0.2, 1.0], "model.start": "procedural"}
    assert sendable(kept) == kept
    assert sendable({"model.weights": "local-dir:/home/a", "model.text": "~/towers", "x": ["/a"]}) == {}


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_said_before_anything(name, config, dpfed, monkeypatch, tmp_path):
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "tiny.toml").write_text(config.dump())
    code, _, error = dpfed("pretrain", "tiny.toml", "--run", "run", "--report-to", name)
    assert code == 2 and "[tracker-missing]" in error and f"pip install {name}" in error and "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(config, dpfed, tmp_path):
    (tmp_path / "tiny.toml").write_text(config.dump())
    code, _, error = dpfed("pretrain", "tiny.toml", "--run", "run", "--report-to", "tensorboard,wandbd")
    assert code == 2 and "did you mean 'wandb'?" in error and not (tmp_path / "run").exists()


def test_nobody_is_asked_for_a_login_in_a_run(config, tmp_path, monkeypatch):
    import wandb

    monkeypatch.setattr(wandb, "login", lambda prompt: False)
    with pytest.raises(dpfed.UserError, match="WANDB_MODE=offline"):
        WandB(mode="online")


@pytest.mark.long
def test_a_training_without_a_folder_can_use_the_store_that_the_refusal_names(tmp_path):
    with pytest.raises(dpfed.UserError, match="mlflow-folder") as refusal:
        MLflow().on_begin(0)
    tracker = eval(re.search(r"as in (MLflow\(.+?\))", str(refusal.value))[1])
    tracker.on_begin(0)
    tracker.on_step(StepSummary(0, 10, 0.1, 1.0))
    tracker.on_end()
    assert (tmp_path / "mlruns").is_dir()


@pytest.mark.parametrize("every", [0, -1, 2.5, "10"])
def test_rows_are_at_least_a_step_apart(every):
    with pytest.raises(dpfed.UserError, match="tracker-every"):
        TensorBoard("boards", every=every)


def test_a_tracker_that_fails_at_the_end_does_not_ask_to_resume_a_finished_run(tmp_path, monkeypatch):
    def fails(finished):
        raise ValueError("no route to host")

    tracker = TensorBoard("boards")
    tracker.on_begin(0)
    monkeypatch.setattr(tracker, "_close", fails)
    with pytest.raises(dpfed.UserError, match="the run is finished.*tracker-refused") as refusal:
        tracker.on_end()
    assert "resume" not in str(refusal.value)


def test_a_server_that_is_not_there_is_said_before_the_run(dpfed, config, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (tmp_path / "tiny.toml").write_text(config.dump())
    code, _, error = dpfed("pretrain", "tiny.toml", "--run", "run", "--report-to", "mlflow")
    assert code == 2 and "[tracker-refused]" in error and not (tmp_path / "run").exists()
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


@pytest.mark.long
def test_wandb_finds_no_login_on_an_empty_machine(tmp_path):
    """The real question, in a process that has no account: an answer at once, and no prompt."""
    code = "from dpfed.callbacks import WandB\ntry: WandB()\nexcept Exception as error: print(error)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_MODE")}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, input="", timeout=120)
    assert "[tracker-login]" in done.stdout, done.stderr


@pytest.mark.long
def test_the_command_reports_and_resumes(config, dpfed, tmp_path):
    (tmp_path / "tiny.toml").write_text(config.dump())
    code, _, error = dpfed("pretrain", "tiny.toml", "--run", "run", "--report-to", "tensorboard", "--json")
    assert code == 0, error
    assert boards(tmp_path / "run" / "tensorboard").Scalars("training/epsilon")[-1].step == 6
    code, _, error = dpfed("resume", "run", "--report-to", "tensorboard", "--json")  # finished: it is only shown
    assert code == 0, error


@pytest.mark.long
def test_simulated_sites_report_too(config, dpfed, tmp_path):
    (tmp_path / "tiny.toml").write_text(config.dump())
    words = ("--federated", "2", "--trust", "central", "--report-to", "tensorboard", "--json")
    code, _, error = dpfed("pretrain", "tiny.toml", "--run", "run", *words)
    assert code == 0, error
    assert boards(tmp_path / "run" / "tensorboard").Scalars("training/epsilon")[-1].step == 6


@pytest.mark.long
def test_rank_0_of_a_cluster_reports(config, tmp_path):
    """Callbacks travel to the process that leads, as Ray sends them."""
    from dpfed.cluster.torchrun import process_group
    from dpfed.cluster.work import Task, work
    from dpfed.progress import Silent

    task = pickle.loads(pickle.dumps(Task(tmp_path / "run", config, callbacks=tuple(all_trackers()))))
    with process_group():
        work(task, Silent())
    run = RunDirectory.open(tmp_path / "run")
    assert dict(on_tensorboard(run)).keys() == dict(on_wandb(run)).keys() == dict(on_mlflow(run)).keys() == expected(run).keys()


def test_a_training_without_a_run_has_trackers_too(shapes, tmp_path):
    tracker = TensorBoard(tmp_path / "boards", every=1)
    tracker.on_begin(0)
    for step in range(3):
        tracker.on_step(StepSummary(step, 3, 0.1, 1.0))
    assert [point.step for point in boards(tmp_path / "boards").Scalars("training/learning_rate")] == [1, 2, 3]
    for other in (TensorBoard(), MLflow()):
        with pytest.raises(dpfed.UserError, match="has no folder"):
            other.on_begin(0)


@pytest.mark.long
def test_what_a_tracker_raises_is_one_sentence(config, tmp_path, monkeypatch):
    board = TensorBoard()
    monkeypatch.setattr(board, "_write", lambda rows: 1 / 0)
    with pytest.raises(dpfed.UserError, match="division by zero.*no step is lost"):
        dpfed.pretrain(config, tmp_path / "run", callbacks=[board])
    assert dpfed.resume(tmp_path / "run").finished


def test_trackers_are_made_when_they_are_asked_for():
    heavy = "{'wandb', 'mlflow', 'tensorboard', 'torch'}"
    code = f"import dpfed, sys; dpfed.callbacks.TensorBoard; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
