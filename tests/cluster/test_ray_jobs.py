"""Runs on a real Ray head: what a job leaves behind is what one process would, whatever dies on the way."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from ray_head import ROOT, ray_head

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import load_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.runs.pretraining import pretrain
from tests.patience import Patience, exit_code, output_of

CONFIG = "configs/quickstart.toml"


@pytest.fixture(scope="module")
def head():
    with ray_head() as running:
        yield running


@pytest.fixture(scope="module")
def marker():
    """A word that is in every id and caption of the private records, and nowhere else on this machine."""
    return f"secret{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def private(tmp_path_factory, marker):
    """600 private training records and 100 test records."""
    folder = tmp_path_factory.mktemp("private")
    write_shapes(folder / "shapes", train=600, validation=0, test=100)
    shapes = RecordStore.open(folder / "shapes")
    with StoreWriter(folder / "store", name="private", kind="image-text", size=32) as writer:
        for split in ("train", "test"):
            rows = shapes.split(split)
            images = shapes.images(rows, 32).permute(0, 2, 3, 1).numpy()
            for row, image, texts in zip(rows, images, shapes.captions(rows), strict=True):
                writer.add(RecordInput(f"{marker}-{row}", np.ascontiguousarray(image), (f"{texts[0]} {marker}",), split=split))
    return folder / "store"


@pytest.fixture
def settings(private):
    """The quickstart's configuration, made small: what `--set` takes."""
    values = {
        "data.source": "store",
        "data.path": private,
        "data.public": "false",
        "bounding.engine": "loop",
        "bounding.microbatch": 64,
        "privacy.batch": 128,
        "privacy.steps": 12,
        "evaluation.every": 6,
        "training.checkpoint_every": 5,
        "training.device": "cpu",
    }
    return values


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "small"


def assignments(settings):
    return [f"{key}={value}" for key, value in settings.items()]


def options(settings):
    return [word for text in assignments(settings) for word in ("--set", text)]


def local(settings, folder):
    return pretrain(load_config(ROOT / CONFIG, assignments(settings)), folder)


def results(run):
    return json.loads(run.results.read_text())


def files(run):
    return {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}


def wait_until(condition, job, seconds=400):
    patience = Patience(seconds)
    while not condition():
        assert job.running and not patience.ended, job.wait(1).output
        time.sleep(0.02)


def charged(folder):
    """Releases that are paid for by now; a line may be half written."""
    ledger = folder / "ledger.jsonl"
    return sum(b'"charged": true' in line for line in ledger.read_bytes().split(b"\n")[:-1]) if ledger.exists() else 0


def assert_finished(folder, settings, replays=0):
    """The run is complete, and each step was paid for once."""
    run = RunDirectory.open(folder)
    ledger = Ledger.open(run.ledger)
    assert run.finished and not (folder / "secret.key").exists() and not (folder / "releases").exists()
    assert ledger.charged == settings["privacy.steps"] and ledger.replays >= replays
    assert all(ledger.release_of(step) for step in range(settings["privacy.steps"]))
    assert results(run)["privacy"]["epsilon"] == ledger.epsilon == ledger.plan.epsilon(ledger.plan.steps) <= 8
    assert not list(folder.parent.glob(".*ray-*"))
    return run


@pytest.mark.slow
def test_a_submitted_job_leaves_one_processs_run_and_clean_logs(head, settings, folder, tmp_path, marker):
    job = head.submit(CONFIG, "--workers", 2, "--gpus-per-worker", 0, "--run", folder, *options(settings))
    wait_until(lambda: charged(folder) >= 1, job)
    key = (folder / "secret.key").read_bytes()
    done = job.wait()
    assert done.code == 0, done.output
    run, alone = assert_finished(folder, settings), local(settings, tmp_path / "alone")
    assert files(run) == files(alone)
    one, other = Ledger.open(run.ledger), Ledger.open(alone.ledger)
    assert one.plan.fingerprint == other.plan.fingerprint and one.charged == other.charged and one.replays == 0
    assert results(run)["privacy"] == results(alone)["privacy"]
    names, others = ({entry["name"] for entry in results(one)["evaluations"]} for one in (run, alone))
    assert names == others
    said = "before training:", "after step 6:", "image_to_text_R@10", "quickstart: epsilon 8.00", f"{folder}/report.html"
    assert [text for text in said if text not in done.output] == []
    owners = Randomness(key).for_ranks().master
    secret = [text for part in (key, owners) for text in (part, part.hex().encode(), repr(part).encode())]
    for path, content in head.logs().items():
        assert marker.encode() not in content and not any(text in content for text in secret), path


@pytest.mark.slow
def test_data_and_epsilon_alone_train_on_a_ray_head(head, private, tmp_path):
    words = ["pretrain", "--data", str(private), "--epsilon", "8", "--steps", "3", "--batch", "64"]
    for name, more in (("cluster", ("--cluster", "ray", "--workers", "2", "--gpus-per-worker", "0")), ("alone", ())):
        done = head.dpfed(*words, "--run", str(tmp_path / name), *more)
        assert done.code == 0, done.output
    run, alone = (RunDirectory.open(tmp_path / name) for name in ("cluster", "alone"))
    assert run.finished and Ledger.open(run.ledger).charged == 3
    assert Ledger.open(run.ledger).plan.fingerprint == Ledger.open(alone.ledger).plan.fingerprint
    chosen = [(one.path / "config.toml").read_text() for one in (run, alone)]
    assert chosen[0] == chosen[1] and chosen[0].startswith("# Chosen by dpfed")


@pytest.mark.slow
def test_nobody_is_let_in_without_the_token(head, settings, folder):
    for header in ({}, {"Authorization": f"Bearer {secrets.token_hex(32)}"}):
        body = json.dumps({"entrypoint": "true"}).encode()
        request = urllib.request.Request(f"{head.environment['RAY_API_SERVER_ADDRESS']}/api/jobs/", body, header)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code in (401, 403)
    done = head.dpfed(
        "pretrain", CONFIG, "--cluster", "ray", "--run", str(folder), *options(settings), RAY_AUTH_TOKEN=secrets.token_hex(32)
    )
    assert done.code == 2 and "error: " in done.output and "token" in done.output and "Traceback" not in done.output
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_after_a_killed_worker_no_step_is_paid_twice(head, settings, folder, rank):
    settings |= {"privacy.steps": 40, "privacy.batch": 300, "training.checkpoint_every": 1000, "evaluation.every": 0}
    job = head.submit(CONFIG, "--workers", 2, "--run", folder, *options(settings))
    wait_until(lambda: charged(folder) >= 4, job)
    os.kill(head.worker(rank), signal.SIGKILL)
    before = charged(folder)
    done = job.wait()
    assert done.code == 0, done.output
    assert before < 40
    assert_finished(folder, settings, replays=before)  # the only checkpoint is that of step 0: all are repeated


@pytest.mark.slow
def test_without_restarts_the_job_names_a_resume_that_works(head, settings, folder):
    settings |= {"privacy.steps": 40, "privacy.batch": 300, "evaluation.every": 0}
    job = head.submit(CONFIG, "--workers", 2, "--restarts", 0, "--run", folder, *options(settings))
    wait_until(lambda: charged(folder) >= 7, job)
    os.kill(head.worker(1), signal.SIGKILL)
    done = job.wait()
    assert done.code == 1 and f"dpfed resume {folder} --cluster ray" in done.output and "Traceback" not in done.output
    assert not RunDirectory.open(folder).finished
    resumed = head.dpfed("resume", str(folder), "--cluster", "ray", "--workers", "1")
    assert resumed.code == 0, resumed.output
    assert_finished(folder, settings)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "ray job stop"])
def test_a_dead_driver_is_submitted_again_only_with_resume(head, settings, folder, how):
    settings |= {"privacy.steps": 40, "privacy.batch": 300, "evaluation.every": 0}
    arguments = [CONFIG, "--workers", 2, "--run", folder, *options(settings)]
    job = head.submit(*arguments)
    wait_until(lambda: charged(folder) >= 7, job)
    if how == "SIGKILL":
        os.kill(head.driver(folder), signal.SIGKILL)
        assert job.wait().code == 1
    else:
        job.stop()
    refused = head.submit(*arguments).wait()
    assert refused.code == 1 and "exit code 2" in refused.output and "Traceback" not in refused.output
    assert f"error: {folder} is in use: if it holds a run, `dpfed resume {folder}`" in refused.output
    again = head.submit(*arguments, "--resume").wait()
    assert again.code == 0, again.output
    run = RunDirectory.open(folder)
    assert run.finished and Ledger.open(run.ledger).charged == 40


@pytest.mark.slow
def test_a_run_inside_the_jobs_temporary_copy_is_refused(head, settings):
    done = head.submit(CONFIG, "--workers", 2, "--run", "runs/lost", *options(settings)).wait()
    assert done.code == 1 and "exit code 2" in done.output and "Traceback" not in done.output
    assert (
        "error: a submitted job runs in a temporary copy of its working directory: give --run as absolute paths" in done.output
    )


@pytest.mark.slow
def test_a_range_of_workers_goes_on_without_one_that_left(settings, folder):
    settings |= {"privacy.steps": 100, "privacy.batch": 300, "evaluation.every": 0, "training.checkpoint_every": 1000}
    with ray_head(cpus=1) as head, head.second_node(cpus=1) as node:
        job = head.submit(CONFIG, "--workers", "1-2", "--cpus-per-worker", 1, "--run", folder, *options(settings))
        wait_until(lambda: charged(folder) >= 4, job)
        assert head.workers() == 2
        node.terminate()
        exit_code(node, 60)
        before = charged(folder)
        done = job.wait(420)
        assert done.code == 0, done.output
        assert head.workers() == 1 and before < 100
        assert "Traceback" not in done.output and "quickstart: epsilon 8.00" in done.output
    assert_finished(folder, settings, replays=before)


@pytest.mark.slow
def test_a_job_stopped_while_waiting_asks_for_no_machines(head, settings, folder):
    words = ["-m", "dpfed", "pretrain", CONFIG, "--cluster", "ray", "--workers", "3", "--gpus-per-worker", "1"]
    command = [sys.executable, *words, "--run", str(folder), *options(settings)]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, env=head.environment, cwd=ROOT, text=True, **pipes)
        patience = Patience(200)
        while "'GPU': 1, 'CPU': 1" not in head.ray("status").output.replace("'CPU': 1, 'GPU': 1", "'GPU': 1, 'CPU': 1"):
            assert not patience.ended and process.poll() is None
        process.send_signal(number)
        output, _ = output_of(process, 60)
        assert process.returncode == code and "the same command begins it" in output
        time.sleep(5)  # Ray looks at the demands now and then
        said = head.ray("status").output
        assert "(none)" in said and "no resource demands" in said, said
