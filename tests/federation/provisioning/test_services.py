"""Units, proxy and images: what they start, what they may reach, and that who reads them understands."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpfed import __version__
from dpfed.federation.provisioning.services import coordinator_files, site_files
from tests.patience import run_to_end

ROOT = Path(__file__).resolve().parents[3]
SITE = site_files("chest", "north", "superlink.example.org:9443")
LINK = coordinator_files("chest", "/srv/dpfed/chest", "superlink.example.org", 9443)
UNITS = {Path(name).name: text for files in (SITE, LINK) for name, text in files.items() if name.endswith(".service")}
NETWORKED = {"dpfed-node@.service", "dpfed-superlink@.service"}
IMAGES = [ROOT / "clients" / "Containerfile", ROOT / "server" / "Containerfile"]


def settings(unit):
    """Values of a unit's keys, in their order."""
    values = {}
    for line in re.sub(r"^[#;].*$", "", unit, flags=re.MULTILINE).splitlines():
        key, equals, value = line.partition("=")
        if equals:
            values.setdefault(key, []).append(value)
    return values


def program(name):
    return shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/bin:/bin") or pytest.skip(f"needs {name}")


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    """The units as instances of a folder that is there, with its programs."""
    folder = tmp_path_factory.mktemp("units").resolve()
    place = folder / "chest-north"
    (place / "venv" / "bin").mkdir(parents=True)
    for name in ("python", "dpfed", "flower-superlink"):
        (place / "venv" / "bin" / name).symlink_to("/bin/true")
    escape = shutil.which("systemd-escape") or pytest.skip("needs systemd")
    instance = subprocess.run([escape, "--path", place], capture_output=True, text=True, check=True).stdout.strip()
    for name, text in UNITS.items():
        # The users are made by the operator; a machine that tests has others.
        (folder / name.replace("@", f"@{instance}")).write_text(
            re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.MULTILINE)
        )
    return sorted(folder.glob("*.service"))


def test_systemd_understands_every_unit(instances):
    verify = [program("systemd-analyze"), "verify", "--man=no", *instances]
    done = run_to_end(verify, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "dpfed" in line]
    assert done.returncode == 0 and not said, done.stderr
    broken = instances[0].with_name("broken.service")
    broken.write_text(instances[0].read_text().replace("NoNewPrivileges", "NoNewPrivilegs"))
    done = run_to_end([*verify[:3], broken], capture_output=True, text=True, timeout=60, check=False)
    assert "Unknown key" in done.stderr  # so a misspelt key would have been noticed


@pytest.mark.parametrize("name", UNITS)
def test_no_unit_is_root_or_writes_where_it_need_not(name):
    unit = settings(UNITS[name])
    assert unit["User"][0] in ("dpfed", "dpfed-node") and unit["NoNewPrivileges"] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"] and unit["CapabilityBoundingSet"] == [""]
    assert all(path.startswith("%f") for paths in unit.get("ReadWritePaths", []) for path in paths.split())
    (command,) = unit["ExecStart"]
    assert command.startswith("%f/venv/bin/") and "insecure" not in command
    assert unit["WorkingDirectory"] == ["%f"] and "--insecure" not in UNITS[name]


def test_a_supernode_runs_no_code_that_a_run_brings():
    (command,) = settings(UNITS["dpfed-node@.service"])["ExecStart"]
    assert " --isolation process " in command and " --host 127.0.0.1 " in command
    (link,) = settings(UNITS["dpfed-superlink@.service"])["ExecStart"]
    assert " --host 127.0.0.1 " in link and "--enable-supernode-auth" in link


def test_only_supernodes_and_superlink_reach_the_network():
    for name, text in UNITS.items():
        unit = settings(text)
        if name == "dpfed-worker@.service":
            assert unit["PrivateNetwork"] == ["yes"] and unit["RestrictAddressFamilies"] == ["AF_UNIX"]
        elif name not in NETWORKED:
            assert unit["IPAddressDeny"] == ["any"] and unit["IPAddressAllow"] == ["localhost"], name
    for name in UNITS:
        if "-node-" in name or "-app-" in name:
            assert settings(UNITS[name])["InaccessiblePaths"] == ["-%f/site"]  # records' settings, keys, ledger


def instructions(file):
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.parent.name)
def test_an_image_is_not_root_and_holds_only_what_is_named(file):
    words = instructions(file)
    last = [word for word, _ in words][::-1]
    assert ("USER", "1000:1000") in words and last.index("USER") < last.index("RUN")  # nothing is done as root after it
    copied = {source for word, rest in words if word == "COPY" and "--from" not in rest for source in rest.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied) and not copied & {".", "runs", "stores"}
    assert {"dpfed", "configs"} <= copied
    (install,) = [rest for word, rest in words if word == "RUN" and "uv pip install" in rest]
    assert "--compile-bytecode" in install  # the root is read-only when it runs
    assert "--verify-hashes" in install and "--constraint requirements.lock" in install
    assert "EXPOSE" not in dict(words)
    assert f"dpfed-{'site' if file.parent.name == 'clients' else 'coordinator'}:{__version__}" in file.read_text()
    python = re.fullmatch(r"python:3\.(\d+)-slim", [rest for word, rest in words if word == "FROM"][-1])
    assert 11 <= int(python[1]) <= 13


SCRIPTS = {name: text for files in (SITE, LINK) for name, text in files.items() if name.startswith("programs/")}


@pytest.mark.parametrize("name", SCRIPTS)
def test_any_supervisor_starts_the_same_program_as_systemd(tmp_path, name):
    """The script runs the unit's command, in the folder, with the settings of .env; what it gets is written down here."""
    program = Path(name).name
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "programs").mkdir()
    for called in ("dpfed", "flower-superlink"):
        probe = tmp_path / "venv" / "bin" / called
        probe.write_text(f'#!/bin/sh\necho "{called}"\nfor word in "$@"; do echo "$word"; done\necho "port $DPFED_PORT"\n')
        probe.chmod(0o755)
    (tmp_path / name).write_text(SCRIPTS[name])
    (tmp_path / ".env").write_text("DPFED_PORT=9377\n")
    started = subprocess.run(["/bin/sh", tmp_path / name], capture_output=True, text=True, check=True, cwd="/")
    words = started.stdout.splitlines()
    unit = UNITS[f"dpfed-{program}@.service"]
    (command,) = settings(unit)["ExecStart"]
    wanted = command.replace("%f/venv/bin/", "").replace("%f", str(tmp_path)).replace("${DPFED_PORT}", "9377").replace("'", "")
    wanted = wanted.removesuffix(" --group dpfed-node")  # the group of systemd's two users
    assert " ".join(words[:-1]) == wanted
    assert words[-1] == "port 9377"
