"""A report is one file that loads nothing, shows only what it may, and escapes what it is given."""

import dataclasses
import json
import re

import pytest
import torch
from matplotlib.colors import to_hex

from dpfed.artifacts.view import read_view
from dpfed.errors import UserError
from dpfed.evaluation.features import Embedder
from dpfed.protocol.journal import Journal
from dpfed.report.facts import FIXED_SEED, LABELLED_BANK, shared_unit
from dpfed.report.html import CLOSED_FORM, NO_LOSS, _marks, write_report
from dpfed.report.ladder import ladder
from dpfed.report.pictures import build_gallery
from dpfed.report.results import Result
from dpfed.report.style import TARGET, TRAINED, UNTRAINED
from dpfed.report.timeline import timeline_plot
from tests.written_run import CLIPPED, MADE

WITHOUT_ERROR = {"name": "a", "value": 1, "model": "trained", "split": "test", "protocol": "", "step": 1}


def results(**changes):
    """The text of a results.json without figures."""
    return json.dumps({"privacy": {"epsilon": 1.0, "delta": 1e-5, **CLIPPED}, "evaluations": [], "run": MADE, **changes})


def render(tmp_path, *folders):
    path = tmp_path / "report.html"
    write_report(path, [read_view(folder) for folder in folders])
    return path.read_text(encoding="utf-8")


def test_loads_nothing(run_folder, tmp_path):
    html = render(tmp_path, run_folder())
    assert not re.search(r"https?://|<script|<link|@import|url\((?!#)|src=|href=\"(?!#)", html, re.IGNORECASE)
    assert html.count("<svg ") == html.count("</svg>") == 3


def test_shows_the_results_and_the_guarantee(run_folder, tmp_path):
    html = render(tmp_path, run_folder())
    said = ("(1.00, 1.00e-5)-differentially private", "Text to image R@10", "1.0 %", "70.0 %", "+69.0 pts", "epsilon = 8.0")
    assert [text for text in said if text not in html] == []


@pytest.mark.long
def test_pictures_only_with_a_gallery(run_folder, tmp_path, model, make_store, config):
    folder = run_folder()
    assert "image/png" not in render(tmp_path, folder)
    hidden, shown = make_store(public=False), make_store()
    assert build_gallery(Embedder(model, hidden.read, torch.Tensor.float, None, "cpu"), hidden, hidden.read, config) is None
    pictures = build_gallery(
        Embedder(model, shown.read, torch.Tensor.float, lambda t: torch.zeros(len(t), 1), "cpu"), shown, shown.read, config
    )
    pictures.write(folder / "gallery")
    html = render(tmp_path, folder)
    assert html.count("data:image/png") > 10
    assert "&lt;b&gt;bold" in html and "<b>bold" not in html


def test_escapes_what_a_run_says(run_folder, tmp_path):
    html = render(tmp_path, run_folder(name="<img src=x onerror=alert(1)>"))
    assert "<img src=x" not in html and "&lt;img src=x onerror" in html
    assert "cosine <i>" not in html
    html = render(tmp_path, run_folder(name="a"), run_folder(name="<script>b"))
    assert "<script" not in html


def test_the_curve_of_epsilon_is_drawn_where_a_ledger_is(run_folder, tmp_path):
    folder = run_folder()
    assert "Privacy spent: epsilon over steps" in render(tmp_path, folder)
    (folder / "ledger.jsonl").unlink()
    assert "Privacy spent" not in render(tmp_path, folder)


@pytest.mark.long
def test_chance_and_noise_alone_are_drawn_where_known(run_folder, tmp_path):
    folder = run_folder()
    assert "noise alone" not in render(tmp_path, folder) and "chance (orange)" not in render(tmp_path, folder)
    content = json.loads((folder / "results.json").read_text())
    content["privacy"] |= {"noise_std": 3.0, "divisor": 6, "trained_parameters": 400}
    content["evaluations"] = [item | {"chance": 0.1} for item in content["evaluations"]]
    (folder / "results.json").write_text(json.dumps(content))
    lines = [{"step": step, "epsilon": 0.1, "learning_rate": 0.1, "noisy_gradient_norm": 11.0} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    view, html = read_view(folder), render(tmp_path, folder)
    assert view.noise_norm == 10.0 and view.table[0].chance == 0.1
    assert "noise alone" in html and "chance (orange)" in html
    content["privacy"]["clipping"] = "adaptive"  # the noise of a step then follows its threshold
    (folder / "results.json").write_text(json.dumps(content))
    assert read_view(folder).noise_norm is None


def test_the_noise_of_a_step_is_what_its_sites_added(run_folder):
    folder = run_folder()
    content = json.loads((folder / "results.json").read_text())
    content["privacy"] |= {"noise_std": 3.0, "divisor": 6, "trained_parameters": 400}  # noise of length 10
    (folder / "results.json").write_text(json.dumps(content))
    Journal(folder / "federation.jsonl").write("collected", 0, arrived=["north"], missing={}, noise_of_sites=3.0 * 2**0.5)
    assert read_view(folder).noise_norm == pytest.approx(10 * 2**0.5)


def test_a_voided_run_gets_no_epsilon_to_open_with(run_folder, tmp_path):
    html = render(tmp_path, run_folder(marks=(FIXED_SEED,)))
    assert "No privacy guarantee holds" in html and "no guarantee holds" in html
    assert "differentially private" not in html and "Privacy spent" not in html
    assert not re.search(r"Epsilon spent</span>", html)


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        (((1.0, (0.2, 1.0)), (0.0, (0.0, 0.8))), ["best", "near"]),  # one held-out record tells nothing
        (((0.7, (0.6, 0.8)), (0.7, (0.6, 0.8)), (0.1, (0.0, 0.2))), ["best", "best", ""]),
        (((0.7, None), (0.7, None), None), ["best", "best", ""]),
        ((None, (0.7, None)), ["", ""]),
    ],
)
def test_the_best_run_and_those_as_good_are_marked_apart(values, marks):
    row = [one and Result("knn", None, one[0], "", "test", trained_interval=one[1]) for one in values]
    assert _marks(row) == marks


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results.json", "{", "results-not-json"),
        ("results.json", "[]", "results-not-object"),
        ("results.json", results(privacy={"epsilon": "8"}), r"\[results-privacy\]"),
        ("results.json", results(privacy={"epsilon": 8, "delta": 0, **CLIPPED}), "results-privacy-range"),
        ("results.json", results(privacy={"epsilon": 8, "delta": 1e-5, "clip_norm": 1.0}), "results-clipping"),
        ("results.json", results(privacy={"epsilon": 8, "delta": 1e-5, "clipping": "fixed"}), "results-clipping"),
        ("results.json", results(evaluations=None), "results-no-list"),
        ("results.json", results(evaluations=[{"name": "a"}]), "'value'.*results-fact-wrong"),
        ("results.json", results(evaluations=[{**WITHOUT_ERROR, "interval": [1]}]), "'interval'.*results-fact-wrong"),
        ("results.json", results(run=None), "results-run-unnamed"),
        ("results.json", results(run={**MADE, "id": 3}), "results-run-unnamed"),
        ("results.json", results(run={**MADE, "data": 3}), "in 'run', 'data' is missing or malformed.*results-run-wrong"),
        ("results.json", results(run={name: value for name, value in MADE.items() if name != "ledger"}), "results-run-unnamed"),
        ("metrics.jsonl", '{"step": 1}\n{"st\n', "line 2.*run-metrics-damaged"),
        ("metrics.jsonl", '{"step": "1"}\n', "line 1.*run-metrics-damaged"),
        ("metrics.jsonl", '{"step": 1, "epsilon": "2"}\n', "line 1.*run-metrics-damaged"),
        ("metrics.jsonl", '{"step": 1, "evaluation": {"value": 0.5}}\n', "line 1.*run-metrics-damaged"),
        ("metrics.jsonl", '{"step": 1, "learning_rate": "0.1"}\n', "line 1.*run-metrics-damaged"),
        ("metrics.jsonl", '{"step": 1, "noisy_gradient_norm": Infinity}\n', "line 1.*run-metrics-damaged"),
        ("config.toml", "name = ", "run-config-damaged"),
        ("privacy_card.md", "", "run-card-damaged"),
        ("privacy_card.md", None, "run-file-unreadable"),
    ],
)
def test_damaged_files_are_named(run_folder, file, content, message):
    folder = run_folder()
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_view(folder)
    assert file in str(caught.value)


def test_runs_of_one_configuration_have_their_folders_names(run_folder, tmp_path):
    folders = [run_folder(name) for name in ("first", "second")]
    for folder in folders:
        config = folder / "config.toml"
        config.write_text(config.read_text().replace(f'name = "{folder.name}"', 'name = "shapes"'))
    runs = [read_view(folder) for folder in folders]
    assert {run.name for run in runs} == {"shapes"}
    write_report(tmp_path / "report.html", runs)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ">first<" in html and ">second<" in html and ">shapes<" not in html


def test_a_comparison_shows_every_mark(run_folder, tmp_path):
    html = render(tmp_path, run_folder("a", marks=(LABELLED_BANK,)), run_folder("b"))
    assert html.count("labelled training records") == 1
    several = run_folder("c", marks=(shared_unit("person"), LABELLED_BANK))
    opening = render(tmp_path, several).partition('<div class="tiles">')[0]
    assert "several of them may share one person" in opening and "labelled training records" in opening


def test_every_colour_of_a_chart_has_a_dark_form(run_folder, tmp_path):
    html = render(tmp_path, run_folder())
    painted = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", html.partition("</style>")[2]))
    assert not painted
    used = set(re.findall(r"var\((--c[0-9a-f]{6}),", html))
    light, _, night = html.partition("</style>")[0].partition("prefers-color-scheme: dark")
    assert used and all(f"{name}: " in light and f"{name}: " in night for name in used)


STEPS = [
    {"event": "collected", "step": 0, "arrived": ["north", "south"], "missing": {}},
    {"event": "collected", "step": 1, "arrived": ["north"], "missing": {"south": "it did not answer"}},
    {"event": "discarded", "step": 2, "arrived": ["north"], "missing": {"south": "it did not answer"}},
]


@pytest.mark.long
def test_a_federation_has_a_timeline_of_its_sites(run_folder, tmp_path):
    folder = run_folder()
    assert "Sites over steps" not in render(tmp_path, folder)
    journal = Journal(folder / "federation.jsonl")
    for line in [{"event": "opened", "step": 0}, *STEPS]:
        journal.write(**line)
    assert "Sites over steps" in render(tmp_path, folder)
    drawn = timeline_plot([*STEPS, {"event": "discarded", "step": 3, "reason": "the server died"}]).axes[0].collections
    shown = [(to_hex(one.get_facecolor()[0]), sorted(path.get_extents().width for path in one.get_paths())) for one in drawn]
    north, south = [(TRAINED, [2]), (UNTRAINED, [2])], [(TRAINED, [1]), (TARGET, [2]), (UNTRAINED, [1])]
    assert shown == north + south


def of_moments(folder):
    text = (folder / "config.toml").read_text()
    assert 'method = "group"' in text
    (folder / "config.toml").write_text(text.replace('method = "group"', 'method = "moments"'))


def test_private_moments_say_why_there_is_no_loss(run_folder, tmp_path):
    folder = run_folder()
    assert NO_LOSS[:50] in render(tmp_path, folder)
    of_moments(folder)
    html = render(tmp_path, folder)
    assert CLOSED_FORM[:50] in html and NO_LOSS[:50] not in html


def test_a_comparison_says_what_each_run_changed_and_gained(run_folder):
    first, second = read_view(run_folder("first")), read_view(run_folder("second"))
    second = dataclasses.replace(second, config_toml=first.config_toml.replace("epsilon = 8.0", "epsilon = 3.0"))
    low, high = (
        Result("knn3_accuracy", 0.1, value, "", "test", trained_interval=(value - 0.01, value + 0.01)) for value in (0.5, 0.6)
    )
    rungs = ladder([first, second, second], [low, high, None])
    assert [rung[0] for rung in rungs] == ["before training", first.name, second.name, second.name]
    assert [rung[1] for rung in rungs] == ["", "", "privacy.epsilon = 3.0", "no key of the configuration"]
    assert rungs[2][3] == "+10.0 ± 1.5 pts" and rungs[3][2:] == ("not measured", "–")
    chance = dataclasses.replace(high, trained=0.505, trained_interval=(0.49, 0.52))
    assert "within error" in ladder([first, second], [low, chance])[2][3]
