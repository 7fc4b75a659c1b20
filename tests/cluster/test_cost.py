"""The simulator against arithmetic by hand, simulation, and what must hold whatever the figures are."""

import dataclasses
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfed.cli import main
from dpfed.cluster.estimate import Machines, bottleneck, estimate, largest_shard
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.privacy.plan import PrivacyPlan

MACHINES = Machines(throughput=500.0, bandwidth=2e9, latency=1e-4, noise=0.05, bookkeeping=0.03, price=3.0, gpus_per_node=8)
ASSUMED = [
    word
    for figure in "bandwidth=2e9 latency=1e-4 throughput=500 price=3 noise=0.05 bookkeeping=0.03".split()
    for word in ("--assume", figure)
]


@pytest.fixture
def plan(tiny_config, tmp_path):
    """A configuration with the plan for F-MNIST of the paper's Table 9, and the words that name it."""
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_config.dump())
    keys = "privacy.batch=2048 privacy.steps=1200 bounding.group_size=16 privacy.epsilon=10".split()
    return [str(path), "--records", "60000", *(word for key in keys for word in ("--set", key))]


@pytest.fixture(scope="module")
def promise():
    return PrivacyPlan.of(
        records=1_000_000, batch=10_000, group_size=10, clip_norm=1.0, steps=200, noise_multiplier=1.0, delta=1e-7
    )


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process: exit code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpfed", "cluster", "cost", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("mean", "workers"), [(3.0, 64), (40.0, 8), (1250.0, 8)])
def test_the_busiest_workers_records_are_those_of_a_simulation(mean, workers):
    drawn = np.random.default_rng(0).poisson(mean, (100_000, workers)).max(axis=1)
    assert largest_shard(mean, workers) == pytest.approx(drawn.mean(), abs=5 * drawn.std() / np.sqrt(len(drawn)))
    assert largest_shard(mean, 1) == mean


def test_seconds_bytes_hours_and_dollars_by_hand(promise):
    one = estimate(promise, MACHINES, parameters=5_000_000, workers=1)
    assert (one.gradients, one.transport, one.coordinator) == pytest.approx((20.0, 0.0, 0.25))
    assert (one.bytes_per_step, one.efficiency) == (0, 1.0)
    assert one.hours == pytest.approx(200 * 20.25 / 3600)
    assert one.dollars == pytest.approx(200 * 20.25 / 3600 * 8 * 3.0)  # the node of eight is paid for

    ten = estimate(promise, MACHINES, parameters=5_000_000, workers=10)
    assert ten.gradients == pytest.approx(ten.largest_shard / 500)
    assert 1000 <= ten.largest_shard < 1010  # groups are dealt by size, so the busiest has hardly more than a tenth
    assert ten.transport == pytest.approx(2 * 9 * 1e-4 + (40e6 + 20e6) / 2e9)  # whole numbers of 64 bits, and float32
    assert ten.coordinator == pytest.approx(0.25)  # 5 million at 0.05: books are written beside the next sum of 2 seconds
    slow = estimate(promise, dataclasses.replace(MACHINES, bookkeeping=1.0), parameters=5_000_000, workers=10)
    assert slow.coordinator == pytest.approx(0.25 + 5.0 - slow.gradients - slow.transport)
    assert (ten.bytes_per_step, ten.gpus) == (60_000_000, 16)
    assert ten.step == pytest.approx(ten.gradients + ten.transport + ten.coordinator)
    assert ten.efficiency == pytest.approx(20.25 / (10 * ten.step))


def test_more_groups_than_memory_holds_are_estimated_all_the_same():
    plan = PrivacyPlan.of(10**12, 10**11, 16, 1.0, 10, 1.0, 1e-13)
    assert estimate(plan, MACHINES, 1_000_000, 64).largest_shard == pytest.approx(10**11 / 64, rel=1e-6)


def test_a_commit_is_divided_among_the_steps_of_ten_seconds(promise):
    machines = dataclasses.replace(MACHINES, throughput=10_000.0, commit=0.4, latency=0.0, bandwidth=1e15, bookkeeping=0.0)
    one = estimate(promise, machines, 5_000_000, 1)  # a step of 1 second and 0.25 for the noise: eight in ten seconds
    assert one.coordinator == pytest.approx(0.25 + 5 * 0.4 / 8)
    slow = estimate(promise, dataclasses.replace(machines, throughput=500.0), 5_000_000, 1)  # each step takes 20 seconds
    assert slow.coordinator == pytest.approx(0.25 + 5 * 0.4)


def test_drawing_reading_and_views_by_hand(promise):
    """N = 1,000,000, B = 10,000: q = 0.01, so a block has 100 steps, and the run has two."""
    data = dataclasses.replace(MACHINES, keys=0.3, drawn=2.0, decoding=1 / 1000, views=1 / 4000)
    one = estimate(promise, data, 5_000_000, 1)
    # Draws and ten seconds of reading beside twenty of gradients.
    assert (one.sampling, one.decoding, one.views) == pytest.approx((0.0, 0.0, 2.5))
    assert one.step == pytest.approx(2.5 + 20.25)
    data = dataclasses.replace(data, ahead=False)
    one = estimate(promise, data, 5_000_000, 1)
    assert one.sampling == pytest.approx(2 * 0.3 / 200 + 2.0 * 0.01)
    assert one.step == pytest.approx(one.sampling + 10.0 + 2.5 + 20.25)
    four = estimate(promise, data, 5_000_000, 4)
    grouped = four.largest_shard + 0.15 * (10_000 - four.largest_shard)  # draws among all, and sets aside what is others'
    assert four.sampling == pytest.approx(2 * 0.3 / 200 + 2.0 * grouped / 1e6)
    alone = PrivacyPlan.of(
        records=1_000_000, batch=10_000, method_name="public", group_size=1, clip_norm=1.0, steps=200, noise_multiplier=1.0,
        delta=1e-7, options={"public_records": 3, "temperature": 1.0},
    )  # fmt: skip
    four = estimate(alone, data, 5_000_000, 4)  # records are divided
    assert four.sampling == pytest.approx(2 * 0.3 / 4 / 200 + 2.0 * four.largest_shard / 1e6)
    four = estimate(promise, data, 5_000_000, 4, cached=True)  # features are read, and records are divided
    assert (four.decoding, four.views, four.largest_shard) == (0.0, 0.0, largest_shard(2_500.0, 4))
    assert four.sampling == pytest.approx(2 * 0.3 / 4 / 200 + 2.0 * four.largest_shard / 1e6)
    slow = estimate(promise, dataclasses.replace(data, decoding=1 / 400, ahead=True), 5_000_000, 1)
    assert slow.decoding == pytest.approx(25.0 - 20.0)  # what the gradients do not hide


def test_the_sentence_names_the_part_that_takes_longest(promise):
    cases = {
        "computing gradients": MACHINES,
        "sending sums": dataclasses.replace(MACHINES, bandwidth=1e5),
        "on the coordinator": dataclasses.replace(MACHINES, noise=100.0),
    }
    for words, machines in cases.items():
        assert words in bottleneck(estimate(promise, machines, 1_000_000, 8))


@pytest.mark.parametrize("figure", ["throughput", "bandwidth", "latency", "noise", "bookkeeping", "price", "gpus_per_node"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_impossible_machines_are_refused(figure, value):
    with pytest.raises(UserError, match="cluster-estimate"):
        dataclasses.replace(MACHINES, **{figure: value})


def test_sigma_and_epsilon_do_not_depend_on_workers(run, plan, tiny_config):
    code, out, err = run(*plan, *ASSUMED, "--workers", 1, "--workers", 8, "--workers", 64, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["plan"]["noise_multiplier"] == pytest.approx(0.928, abs=0.001)  # the paper's, by PLD
    assert answer["plan"]["epsilon"] <= 10 and answer["plan"]["records"] == 60_000
    assert [row["workers"] for row in answer["workers"]] == [1, 8, 64]
    assert all("epsilon" not in row for row in answer["workers"])
    expected = {"throughput": 500, "bandwidth": 2e9, "latency": 1e-4, "noise": 0.05, "bookkeeping": 0.03, "price": 3}
    assert {name: answer["machines"][name] for name in expected} == pytest.approx(expected)
    assert answer["machines"]["gpus_per_node"] == 1

    model = build_model(tiny_config.model, tiny_config.objective)
    assert answer["parameters"] == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_the_readme_lists_every_figure():
    listed = PAGE.partition("| figure | unit |")[2].partition("\n\n")[0]
    assert {name for name in re.findall(r"`(\w+)`", listed)} == {field.name for field in dataclasses.fields(Machines)}


PAGE = (Path(__file__).parents[2] / "cluster" / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\n    dpfed cluster cost ((?:[^\n]*\\\n)*[^\n]*)\n\n```\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "output"), [SHOWN[0], *(pytest.param(*shown, marks=pytest.mark.slow) for shown in SHOWN[1:])]
)
def test_the_page_shows_what_its_commands_print(run, command, output):
    code, out, err = run(*shlex.split(command.replace("\\\n", " ")))
    assert code == 0, err
    assert [line.rstrip() for line in out.strip().splitlines()] == output.splitlines()


def test_what_the_benchmark_measures_is_what_the_command_takes(run, plan):
    from benchmarks.throughput import assumed

    one = {"records_per_second": 500.0, "views_per_second": 50.0, "decoded_per_second": 100.0}
    figures = {
        "coordinator": {"noise_seconds_per_million": 0.05, "bookkeeping_seconds_per_million": 0.03},
        "worker": {"gaps_seconds_per_million_keys": 0.2, "seconds_per_million_drawn": 0.1},
        "transport": {"latency_microseconds": 100.0},
    }
    rest = ["--assume", "bandwidth=2e9", "--assume", "price=3", "--workers", 8, "--json"]
    code, out, err = run(*plan, *assumed(figures, one).split(), *rest)
    assert code == 0, err
    machines = dict(throughput=500, latency=1e-4, noise=0.05, bookkeeping=0.03, keys=0.2, drawn=0.1, views=0.02)
    measured = json.loads(out)["machines"]
    assert {name: measured[name] for name in machines} == pytest.approx(machines) and measured["decoding"] == 0.01


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*ASSUMED, "--workers", "2", "--assume", "views=-1"], "views must not be negative, got -1"),
        ([*ASSUMED, "--workers", "2", "--assume", "views=inf"], "views must be finite, got inf."),
        ([*ASSUMED[2:], "--workers", "2", "--assume", "bandwidth=1e-320"], "the run's time or cost is not a finite number"),
        ([*ASSUMED, "--workers", "2", "--assume", "views=nan"], "views must be finite, got nan."),
        ([*ASSUMED, "--workers", "2", "--assume", "view=1"], "did you mean 'views'? [cluster-figure-unknown]"),
        ([*ASSUMED, "--workers", "2", "--assume", "views=x"], "[cluster-figure-number]"),
        ([*ASSUMED, "--workers", "2", "--assume", "price=4"], "[cluster-figure-twice]"),
        ([*ASSUMED, "--workers", "2", "--assume", "gpus_per_node=1.5"], "[cluster-figure-whole]"),
        ([*ASSUMED, "--workers", "2", "--assume", "ahead=0.5"], "[cluster-ahead]"),
        ([*ASSUMED, "--workers", "2", "--assume", f"gpus_per_node=1{'0' * 400}"], "[cluster-figure-whole]"),
        (["--workers", "2", "--assume", "bandwidth=2"], "[cluster-figure-missing]"),
        ([*ASSUMED, "--workers", "0"], "workers must lie in"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, plan, arguments, said):
    code, out, err = run(*plan, *arguments)
    first, last = err.splitlines()
    assert code == 2 and not out and first.startswith("planning for ")
    assert last.startswith("error: ") and said in last
