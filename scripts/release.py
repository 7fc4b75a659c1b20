"""Makes all that a release consists of, up to the upload, which a person does: `make release`.

Every line that it prints is a point of the checklist. The first point that does not hold ends it; nothing half-made is left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BACKEND = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
_PIN = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?==([^ \\]+)([^\n]*(?:\n    [^\n]*)*)", re.MULTILINE)


def main() -> None:
    """Makes the release of the commit that is checked out, in ``build/release/VERSION``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", help="gpg's name of the key that signs; default: gpg's default key")
    parser.add_argument("--rehearsal", action="store_true", help="allow '(unreleased)' in CHANGELOG.md and changes to files")
    options = parser.parse_args()
    version = one_version(ROOT, options.rehearsal)
    done(f"version {version} in pyproject.toml, dpfed/__init__.py and CHANGELOG.md")
    if not options.rehearsal and _output("git", "status", "--porcelain"):
        sys.exit("not done: the work tree has changes; commit them, or add --rehearsal.")
    commit, when = _output("git", "log", "-1", "--format=%H %ct").split()
    done(f"commit {commit[:12]}")
    out = ROOT / "build" / "release" / version
    with tempfile.TemporaryDirectory() as place:
        source, made = Path(place, "source"), Path(place, "made")
        made.mkdir()
        _export(commit, source)
        for what in ("sdist", "wheel"):
            done(f"{what}: {_built(what, source, made, when)}")
        (made / "sbom.json").write_text(json.dumps(sbom(source / "requirements-core.lock", version), indent=1) + "\n")
        done("sbom.json: what `pip install dpfed` brings, version by version, with hashes (CycloneDX)")
        _documentation(source, made / f"dpfed-{version}-docs.tar.gz")
        done("documentation, built without a warning")
        _sign(made, options.key)
        done("SHA256SUMS, and its signature SHA256SUMS.asc, which was checked")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)
    print(f"\nin {out.relative_to(ROOT)}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    print(
        f"left for a person: `make test-slow`; `git tag -s v{version} {commit[:12]}`; upload these files to the release page."
    )


def one_version(root: Path, rehearsal: bool = False) -> str:
    """The version, if all files name the same one and the changelog has a day for it."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    found = re.search(r'^__version__ = "(.+)"$', (root / "dpfed" / "__init__.py").read_text(), re.MULTILINE)
    if found is None or found[1] != version:
        sys.exit(f"not done: pyproject.toml says {version}, and dpfed/__init__.py {found and found[1]}.")
    heading = re.search(r"^## (\S+) \((.+)\)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    dated = heading is not None and re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2])
    if heading is None or heading[1] != version or not (dated or rehearsal):
        sys.exit(f"not done: CHANGELOG.md must begin with '## {version} (YYYY-MM-DD)', and has {heading and heading[0]!r}.")
    return version


def sbom(lock: Path, version: str) -> dict[str, object]:
    """The software bill of materials of a lock file, as CycloneDX 1.5."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "metadata": {"component": {"type": "library", "name": "dpfed", "version": version}},
        "components": [
            {
                "type": "library",
                "name": name,
                "version": pinned,
                "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{pinned}",
                "properties": [{"name": "hash of a file", "value": f"sha256:{digest}"} for digest in hashes],
            }
            for name, pinned, hashes in pins(lock)
        ],
    }


def pins(lock: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and hashes of every package of a lock file."""
    for match in _PIN.finditer(lock.read_text()):
        yield match[1], match[2], re.findall(r"--hash=sha256:([0-9a-f]{64})", match[3])


def done(what: str) -> None:
    """Ticks a point of the list."""
    print(f"[x] {what}", flush=True)


def _output(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _export(commit: str, source: Path) -> None:
    """The files of a commit, and nothing that lies beside them."""
    archive = source.with_suffix(".tar")
    _output("git", "archive", "--output", str(archive), commit)
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")


def _built(what: str, source: Path, made: Path, when: str) -> str:
    environment = os.environ | {"SOURCE_DATE_EPOCH": when}
    command = [sys.executable, "-W", "ignore", "-c", _BACKEND, what, str(made)]
    finished = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    if finished.returncode:
        sys.exit(f"not done: the {what} cannot be built.\n{finished.stderr}")
    return finished.stdout.split()[-1]


def _documentation(source: Path, archive: Path) -> None:
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(source / "site")]
    finished = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    if finished.returncode:
        sys.exit(f"not done: the documentation cannot be built.\n{finished.stdout}{finished.stderr}")
    with tarfile.open(archive, "w:gz") as files:
        files.add(source / "site", "docs")


def _sign(made: Path, key: str | None) -> None:
    """Hashes of all files, signed; whoever has the public key can check every file."""
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(made.iterdir()))
    (made / "SHA256SUMS").write_text(sums)
    signing = ["gpg", "--batch", "--armor", "--detach-sign", *(("--local-user", key) if key else ()), "SHA256SUMS"]
    for command in (signing, ["gpg", "--batch", "--verify", "SHA256SUMS.asc", "SHA256SUMS"]):
        finished = subprocess.run(command, cwd=made, capture_output=True, text=True)
        if finished.returncode:
            sys.exit(f"not done: {' '.join(command[:3])} failed; give a key that you hold with --key.\n{finished.stderr}")


if __name__ == "__main__":
    main()
