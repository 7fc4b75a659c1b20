"""What the site has beyond docs/: pages that lie elsewhere in the repository, files that pages link to, and the reference.

MkDocs calls the functions whose names begin with `on_` (mkdocs.yml names this file).
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
MOVED = {  # pages that lie outside of docs/ -> where the site has them
    "README.md": "index.md",
    "cluster/README.md": "cluster.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
ROOMS = ("dpfed",)
# Guides first: a title counts 1,000 times as much as text. Pages that answer what beginners search for come before others.
_LAST, _FIRST = ("reference/", "files/", "changelog.md", "contributing.md"), ("library.md", "on-a-gpu.md")
_LINK = re.compile(r"(\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(\))")
_HTML_LINK = re.compile(r'(href=")(?!\w+:|#|/)([^"#]+\.(?:md|ipynb))(#[^"]*)?(")')
_FETCHING = re.compile(r'<script type="module">(?:(?!</script>).)*?cdnjs(?:(?!</script>).)*?</script>', re.DOTALL)
_CODE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Adds what is not in docs/."""
    for source, name in MOVED.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    linked = {
        target
        for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / source for source in MOVED)]
        for target in _targets(page)
        if not target.startswith("docs/") and target not in MOVED
    }
    for target in sorted(linked):
        files.append(File.generated(config, f"files/{target}", abs_src_path=str(ROOT / target)))
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links of the repository into links of the site."""
    home = next((source for source, name in MOVED.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    if (weight := _weight(page.file.src_uri)) != 1:
        page.meta["search"] = {"boost": weight}
    if page.file.src_uri.startswith("reference/"):
        return markdown
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]  # an empty column: its room is for commands
    return outside_code(markdown, lambda text: _LINK.sub(lambda link: _moved(link, home, page.file.src_uri), text))


def _weight(page: str) -> float:
    """How much a page counts in the search."""
    return 0.0001 if page.startswith(_LAST) else 4.0 if page.startswith(_FIRST) else 1.0


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Mends the tutorials' pages, which MkDocs itself does not make: links to other pages, and what fetches from elsewhere.

    The latter is a script that would fetch a library for diagrams, which none has.
    """
    here = page.file.src_uri
    if not here.endswith(".ipynb"):
        return output

    def linked(link: re.Match[str]) -> str:
        if PurePosixPath(link[2]).name == PurePosixPath(here).name:
            return link[0]  # the notebook itself, to be downloaded
        return re.sub(r"\.(md|ipynb)(?=[#\"])", ".html", _moved(link, f"docs/{here}", here))

    return _HTML_LINK.sub(linked, _FETCHING.sub("", output))


def outside_code(markdown: str, change: Any) -> str:
    """Changes a text, but for its blocks of code."""
    parts, last = [], 0
    for block in _CODE.finditer(markdown):
        parts += [change(markdown[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, change(markdown[last:])])


def reference() -> dict[str, str]:
    """A page for each room's folder, with all of its modules, and one that lists the pages."""
    folders: dict[str, list[str]] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if path.name in ("__init__.py", "__main__.py") and module != "dpfed.__init__":
                continue
            name = module.removesuffix(".__init__")
            folders.setdefault(name if name == "dpfed" else name.rpartition(".")[0], []).append(name)
    pages = {}
    for folder, modules in folders.items():
        entries = "\n\n".join(f"::: {module}" for module in modules)
        pages[f"{folder}.md"] = f"# {folder}\n\n{_summary(folder)}\n\n{entries}\n"
    lines = [f"- [{folder}]({folder}.md): {_summary(folder)}" for folder in sorted(folders)]
    pages["index.md"] = (
        "# Reference\n\nPrograms write `import dpfed` and use these names ([your own model](../library.md), "
        "[as a library](../commands.md#as-a-library)).\n\n## Public names\n\n"
        + "\n".join(_public_names())
        + "\n\n## Every module\n\nFor those who change dpfed, or look for one class or function.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    return pages


def _public_names() -> list[str]:
    """A line for each name of ``dir(dpfed)``, in the order of ``dpfed/__init__.py``: its link and its first sentence."""
    lines = []
    for name, home in public_homes().items():
        entry, said = _found(name, home)
        place = f"({entry}.md)" if home == f"dpfed.{name}" else f"[{entry}]"
        lines.append(f"- [`dpfed.{name}`]{place}: {said}")
    return lines


def public_homes() -> dict[str, str]:
    """Public names of `dpfed`, and the modules that they come from; a room is its own module."""
    tree = ast.parse((ROOT / "dpfed" / "__init__.py").read_text(encoding="utf-8"))
    values = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("_HOMES", "_ROOMS")
    }
    return values["_HOMES"] | {room: f"dpfed.{room}" for room in values["_ROOMS"]}


def _found(name: str, home: str) -> tuple[str, str]:
    """Where the reference has a public name, and its first sentence; a package hands names on from its modules."""
    if home == f"dpfed.{name}":  # a room
        return home, _summary(home)
    path = ROOT.joinpath(*home.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            said = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            return f"{home}.{name}", said
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and any((alias.asname or alias.name) == name for alias in node.names)
        ):
            return _found(name, node.module)
    raise ValueError(f"{home} has no {name}")


def _summary(package: str) -> str:
    """The first line of a package's docstring."""
    source = ROOT.joinpath(*package.split("."), "__init__.py")
    said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) if source.is_file() else None
    return (said or "").split("\n\n")[0].replace("\n", " ")


def _targets(page: Path) -> set[str]:
    """Files of the repository that a page links to."""
    found = set()

    def note(text: str) -> str:
        for link in _LINK.finditer(text):
            path = Path(os.path.normpath(page.parent / link[2]))
            if path.is_file() and path.is_relative_to(ROOT):
                found.add(path.relative_to(ROOT).as_posix())
        return text

    outside_code(page.read_text(encoding="utf-8"), note)
    return found


def _moved(link: re.Match[str], home: str, here: str) -> str:
    """A link as the site has it.

    Args:
        link: of a page.
        home: the page's place in the repository.
        here: its place in the site.
    """
    target = os.path.normpath(PurePosixPath(home).parent / link[2])
    if target in MOVED:
        place = MOVED[target]
    elif target.startswith("docs/"):
        place = target.removeprefix("docs/")
    else:
        place = f"files/{target}"
    return f"{link[1]}{os.path.relpath(place, PurePosixPath(here).parent)}{link[3] or ''}{link[4]}"
