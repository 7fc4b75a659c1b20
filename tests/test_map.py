"""The map is true: every path that it names is there, and the rooms import in the order that it says."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAPS = ["docs/architecture.md", "CONTRIBUTING.md"]
ROOMS = (
    "dpfed.errors dpfed.paths dpfed.files dpfed.schema dpfed.discovery dpfed.objectives dpfed.losses dpfed.privacy "
    "dpfed.data dpfed.budgets dpfed.models dpfed.evaluation dpfed.callbacks dpfed.progress dpfed.features "
    "dpfed.bounding dpfed.baselines dpfed.training dpfed.config dpfed.building dpfed.report dpfed.protocol "
    "dpfed.artifacts dpfed.runs dpfed.planning dpfed.automatic dpfed.encoder dpfed.own_encoder dpfed.arrays dpfed.console "
    "dpfed.trainer dpfed.federation dpfed.reproduce dpfed.audit dpfed.live dpfed.cluster dpfed.cli"
).split()


def modules():
    files = ROOT.glob("dpfed/**/*.py")
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imports(file, known):
    """What a module imports, also inside of functions, and also for types alone."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (name if (name := f"{node.module}.{one.name}") in known else node.module for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


@pytest.fixture(scope="module")
def graph():
    known = modules()
    return {name: {other for other in imports(file, known) if other in known} for name, file in known.items()}


@pytest.mark.parametrize("page", MAPS)
def test_every_path_on_the_map_is_there(page):
    named = set(re.findall(r"`([\w./]+(?:\.py|/))(?:::\w+)?`", (ROOT / page).read_text(encoding="utf-8")))
    assert len(named) > 15
    stems = {file.name for file in ROOT.rglob("*.py") if ".venv" not in file.parts}
    run = set("checkpoints/ model/ gallery/ audit/ commits/ releases/ features/ sites/".split())  # of a run's directory
    folders = [ROOT, *(folder for folder in ROOT.glob("dpfed/**/") if folder.is_dir())]
    missing = [
        name
        for name in named - run
        if "NAME" not in name and not any((folder / name).exists() for folder in folders) and ("/" in name or name not in stems)
    ]
    assert not missing


def test_no_module_imports_itself_in_a_circle(graph):
    seen, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in seen:
            path.append(name)
            for other in sorted(graph[name]):
                visit(other)
            seen.add(path.pop())

    for name in graph:
        visit(name)


def test_rooms_import_only_rooms_below_them(graph):
    upward = defaultdict(list)
    for name, others in graph.items():
        for other in others:
            one, two = room_of(name), room_of(other)
            if one in ROOMS and two in ROOMS and ROOMS.index(two) > ROOMS.index(one):
                upward[one, two].append(f"{name} -> {other}")
    assert not upward, dict(upward)
    assert {room_of(name) for name in graph} - {"dpfed", "dpfed.__main__"} == set(ROOMS)
    said = (ROOT / MAPS[0]).read_text(encoding="utf-8")
    order = re.findall(r"`(\w+)`", said[said.index("`errors`, `paths`") :].partition("\n\n")[0])
    assert order == [name.removeprefix("dpfed.") for name in ROOMS]


def room_of(name):
    return ".".join(name.split(".")[:2]) if name.startswith("dpfed") else name.partition(".")[0]


def test_links_and_paths_in_all_documents_lead_somewhere():
    pages = [page for folder in (".", "docs", "cluster") for page in (ROOT / folder).glob("*.md")]
    lost = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        links = [page.parent / link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
        paths = re.findall(r"`((?:dpfed|tests|benchmarks)/[\w./-]+)`", text)
        lost += [
            f"{page.name}: {place}"
            for place in [*links, *(ROOT / path for path in paths if "NAME" not in path)]
            if not place.exists()
        ]
    assert len(pages) > 15 and not lost


def test_the_tests_mirror_the_rooms():
    folders = {file.parent.relative_to(ROOT / "tests").as_posix() for file in (ROOT / "tests").rglob("test_*.py")}
    of_no_room = {".", "apart", "fuzz", "package"}
    assert not [name for name in folders - of_no_room if not any((place / name).is_dir() for place in (ROOT / "dpfed", ROOT))]
