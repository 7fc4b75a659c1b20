"""A report is one file that loads nothing, shows only what it may, and escapes what it is given."""

import json
import re

import pytest
import torch

from dpfed.artifacts.view import RunView
from dpfed.errors import UserError
from dpfed.report.gallery import build_gallery
from dpfed.report.html import _marks, write_report
from dpfed.report.marks import FIXED_SEED, LABELLED_BANK, RAW_DIAGNOSTICS
from dpfed.report.results import Result
from tests.written_run import CLIPPED, MADE

WITHOUT_ERROR = {"name": "a", "value": 1, "model": "trained", "split": "test", "protocol": "", "step": 1}


def results(**changes):
    """The text of a results.json without figures."""
    return json.dumps({"privacy": {"epsilon": 1.0, "delta": 1e-5, **CLIPPED}, "evaluations": [], "run": MADE, **changes})


def render(tmp_path, *folders):
    path = tmp_path / "report.html"
    write_report(path, [RunView.read(folder) for folder in folders])
    return path.read_text(encoding="utf-8")


def test_loads_nothing(run_folder, tmp_path):
    html = render(tmp_path, run_folder())
    assert not re.search(r"https?://|<script|<link|@import|url\((?!#)|src=|href=\"(?!#)", html, re.IGNORECASE)
    assert html.count("<svg ") == html.count("</svg>") == 3


def test_shows_the_results_and_the_guarantee(run_folder, tmp_path):
    html = render(tmp_path, run_folder())
    for text in (
        "(1.00, 1.00e-5)-differentially private",
        "Text to image R@10",
        "1.0 %",
        "70.0 %",
        "+69.0 pts",
        "epsilon = 8.0",
    ):
        assert text in html


def test_pictures_only_with_a_gallery(run_folder, tmp_path, model, make_store, config):
    folder = run_folder()
    assert "image/png" not in render(tmp_path, folder)
    hidden, shown = make_store(public=False), make_store()
    private = build_gallery(model, hidden, hidden.read, config, lambda x: x.float(), None, "cpu")
    assert private is None
    pictures = build_gallery(model, shown, shown.read, config, lambda x: x.float(), lambda t: torch.zeros(len(t), 1), "cpu")
    pictures.write(folder / "gallery")
    html = render(tmp_path, folder)
    assert html.count("data:image/png") > 10
    assert html.count("<picture>") == html.count('prefers-color-scheme: dark)" srcset') >= 1  # maps have a dark form
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


def test_chance_and_the_noise_alone_are_drawn_where_they_are_known(run_folder, tmp_path):
    folder = run_folder()
    assert "noise alone" not in render(tmp_path, folder) and "chance (orange)" not in render(tmp_path, folder)
    found = json.loads((folder / "results.json").read_text())
    found["privacy"] |= {"noise_std": 3.0, "divisor": 6, "trained_parameters": 400}
    found["evaluations"] = [item | {"chance": 0.1} for item in found["evaluations"]]
    (folder / "results.json").write_text(json.dumps(found))
    lines = [{"step": step, "epsilon": 0.1, "learning_rate": 0.1, "noisy_gradient_norm": 11.0} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    view, html = RunView.read(folder), render(tmp_path, folder)
    assert view.noise_norm == 10.0 and view.table[0].chance == 0.1
    assert "noise alone" in html and "chance (orange)" in html
    found["privacy"]["clipping"] = "adaptive"  # the noise of a step then follows its threshold
    (folder / "results.json").write_text(json.dumps(found))
    assert RunView.read(folder).noise_norm is None


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
def test_the_best_of_a_comparison_and_what_may_be_as_good_are_marked_apart(values, marks):
    row = [one and Result("knn", None, one[0], "", "test", trained_interval=one[1]) for one in values]
    assert _marks(row) == marks


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results.json", "{", "not JSON"),
        ("results.json", "[]", "expected an object"),
        ("results.json", results(privacy={"epsilon": "8"}), "privacy.epsilon"),
        ("results.json", results(privacy={"epsilon": 8, "delta": 0, **CLIPPED}), "privacy.delta between 0 and 1"),
        ("results.json", results(privacy={"epsilon": 8, "delta": 1e-5, "clip_norm": 1.0}), "privacy.clipping"),
        ("results.json", results(privacy={"epsilon": 8, "delta": 1e-5, "clipping": "fixed"}), "privacy.clip_norm"),
        ("results.json", results(evaluations=None), "evaluations"),
        ("results.json", results(evaluations=[{"name": "a"}]), "no valid 'value'"),
        ("results.json", results(evaluations=[{**WITHOUT_ERROR, "interval": [1]}]), "no valid 'interval'"),
        ("results.json", results(run=None), "'run'"),
        ("results.json", results(run={**MADE, "id": 3}), "'run'"),
        ("results.json", results(run={**MADE, "data": 3}), "'run'"),
        ("results.json", results(run={name: value for name, value in MADE.items() if name != "ledger"}), "'run'"),
        ("metrics.jsonl", '{"step": 1}\n{"st\n', "line 2"),
        ("metrics.jsonl", '{"step": "1"}\n', "line 1"),
        ("metrics.jsonl", '{"step": 1, "epsilon": "2"}\n', "line 1"),
        ("metrics.jsonl", '{"step": 1, "evaluation": {"value": 0.5}}\n', "line 1"),
        ("config.toml", "name = ", "config.toml is damaged"),
        ("privacy_card.md", "", "not a privacy card"),
        ("privacy_card.md", None, "cannot read"),
    ],
)
def test_damaged_files_are_named(run_folder, file, content, message):
    folder = run_folder()
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        RunView.read(folder)
    assert file in str(caught.value)


def test_a_comparison_shows_every_mark(run_folder, tmp_path):
    html = render(tmp_path, run_folder("a", marks=(RAW_DIAGNOSTICS,)), run_folder("b"))
    assert html.count("Raw diagnostics were written") == 1
    several = run_folder("c", marks=(RAW_DIAGNOSTICS, LABELLED_BANK))
    opening = render(tmp_path, several).partition('<div class="tiles">')[0]
    assert "Raw diagnostics were written" in opening and "labelled training records" in opening


def test_every_colour_of_a_chart_has_a_dark_form(run_folder, tmp_path):
    html = render(tmp_path, run_folder())
    painted = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", html.partition("</style>")[2]))
    assert not painted
    used = set(re.findall(r"var\((--c[0-9a-f]{6}),", html))
    light, _, night = html.partition("</style>")[0].partition("prefers-color-scheme: dark")
    assert used and all(f"{name}: " in light and f"{name}: " in night for name in used)
