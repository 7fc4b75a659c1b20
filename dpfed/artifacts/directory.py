"""The directory of a run: the names of the run's files, and the functions that read and write them."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dpfed.artifacts.provenance import wrong_provenance
from dpfed.config import Config, read_back
from dpfed.errors import UserError
from dpfed.evaluation.measured import wrong_fact
from dpfed.files.atomic import DRAFT, create_file, draft_of, new_folder, write_atomically
from dpfed.files.json_lines import DamagedLine, append_line, read_lines
from dpfed.files.locking import noted_lock
from dpfed.files.reading import read_bytes, read_text
from dpfed.files.toml_file import leaves, read_toml
from dpfed.paths import is_store, path_of
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.metrics_window import MetricsWindow
from dpfed.privacy.promise import round_up
from dpfed.privacy.randomness import KEY_BYTES, Randomness
from dpfed.protocol.journal import Journal
from dpfed.report.audit import is_audit

_CHOSEN = ("model.start_digest", "bounding.options.basis_digest")  # keys that a run sets if its configuration does not


class RunDirectory:
    """Paths and files of one run.

    Attributes:
        path: Directory of the run. A finished run has ``config.toml`` (resolved), ``ledger.jsonl``, ``metrics.jsonl``,
            ``results.json``, ``privacy_card.md`` (``no_privacy_card.md`` if the method's claim does not hold),
            ``report.html``, ``for_the_board.html``, ``provenance.json``, ``checkpoints/`` and ``model/``.

            Some runs also have ``disclosures.json`` (if the records were used for more than the model), ``budget.json`` (if the
            run has reserved a part of a lifetime budget), ``privacy_audit.json`` (if an audit attacked the claim), ``audit/``
            (private figures of attacks on the weights) and ``gallery/`` (pictures of public or generated records).

            Four names occur only before the end, and must stay inside the trust boundary: ``secret.key``, ``commits/``
            (encrypted states of the training), ``releases/``, and ``features/`` (of frozen towers).

            A federation's run also has ``terms.json`` and ``federation.jsonl``, ``arrivals.json`` while a process works on it,
            and, if it is simulated, ``simulation.json`` and ``sites/``.
    """

    TERMS, SIMULATION, PROVENANCE = "terms.json", "simulation.json", "provenance.json"
    PRIVACY_AUDIT, BUDGET = "privacy_audit.json", "budget.json"

    def __init__(self, path: str | Path) -> None:
        self.path = path = path_of(path, "the folder of a run")
        self.ledger = path / "ledger.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.results = path / "results.json"
        self.card = path / "privacy_card.md"
        self.no_card = path / "no_privacy_card.md"
        self.report = path / "report.html"
        self.board = path / "for_the_board.html"
        self.checkpoints = path / "checkpoints"
        self.releases = path / "releases"
        self.commits = path / "commits"
        self.features = path / "features"
        self.model = path / "model"
        self.gallery = path / "gallery"
        self.terms = path / self.TERMS
        self.journal = path / "federation.jsonl"
        self.arrival_log = path / "arrivals.json"
        self.simulation = path / self.SIMULATION
        self.audits = path / "audit"
        self.budget = path / self.BUDGET
        self._provenance = path / self.PROVENANCE
        self._privacy_audit = path / self.PRIVACY_AUDIT
        self._disclosures = path / "disclosures.json"
        self.sites = path / "sites"
        self._config = path / "config.toml"
        self._key = path / "secret.key"
        self._lock = path / ".lock"

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Config,
        randomness: Randomness,
        files: dict[str, str] | None = None,
        comments: Sequence[str] = (),
    ) -> RunDirectory:
        """Makes the directory with its configuration and its secret key: completely, or not at all.

        Args:
            path: Path of the directory.
            config: Resolved configuration.
            randomness: Randomness whose key the directory keeps until the run is finished.
            files: Further text files, by name.
            comments: Lines that explain the configuration.

        Raises:
            UserError: If the directory is in use, or cannot be made.
        """
        path = path_of(path, "the folder of a run")
        cls.refuse_if_in_use(path)
        try:
            with new_folder(path.resolve()) as draft:
                run = cls(draft)
                create_file(run._config, config.dump(comments=comments))
                create_file(run._lock, secrets.token_hex(16))
                for name, text in (files or {}).items():
                    create_file(draft / name, text)
                create_file(run._key, randomness.master, mode=0o600)
        except OSError as error:
            raise _cannot_make(path, error) from None
        return cls(path)

    @staticmethod
    def unused(path: str | Path) -> bool:
        """Returns whether a run can be created at a path: it does not exist, or is an empty directory.

        Raises:
            UserError: If the path cannot be checked: for example, its name is too long, or this user may not read the folder.
        """
        path = path_of(path, "the folder of a run")
        if "\0" in str(path):  # the system rejects null bytes
            raise _cannot_make(path, ValueError("a path must not contain a null byte"))
        try:
            return not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir()))
        except OSError as error:
            raise _cannot_make(path, error) from None

    @classmethod
    def refuse_if_in_use(cls, path: str | Path) -> None:
        """Rejects a path at which there is anything but an empty directory.

        Raises:
            UserError: If there is a file or a directory with entries at the path, or the path cannot be checked.
        """
        if not cls.unused(path):
            raise UserError(
                f"{path} is in use: if it holds a run, `dpfed resume {path}` resumes that run (if parts were passed in Python: "
                "running the same lines of Python again). A new run needs its own folder. [run-in-use]",
                command="On the command line: --resume or --run DIR",
            )

    @classmethod
    def refuse_unusable(cls, path: str | Path) -> None:
        """Rejects a path where no run can be made; tests this by making a folder beside it and removing the folder again.

        Raises:
            UserError: If the directory is in use, or cannot be made.
        """
        cls.refuse_if_in_use(path)
        path = Path(path).resolve()
        draft = draft_of(path)
        # `Path.exists` raises for long names.
        missing = [folder for folder in (draft, *draft.parents) if not os.path.exists(folder)]
        made = []
        try:
            if os.path.ismount(path):  # an empty mount point, which the run cannot replace
                raise OSError(errno.EBUSY, "a run cannot replace a mount point")
            for folder in reversed(missing):
                folder.mkdir()
                made.append(folder)
        except (OSError, ValueError) as error:
            raise _cannot_make(path, error) from None
        finally:
            for folder in reversed(made):
                with contextlib.suppress(OSError):  # another process has written to the folder since
                    folder.rmdir()

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Opens an existing run.

        Raises:
            UserError: If there is no run, or an entry in it is of the wrong kind.
        """
        run = cls(path)
        if not os.path.lexists(run._config):
            raise UserError(f"{path} is not a run: {_instead(run.path)}. [run-no-config]")
        run.refuse_odd_entries()
        return run

    @property
    def finished(self) -> bool:
        """Whether training and evaluation are done."""
        return self.results.is_file()

    @property
    def epsilon(self) -> float | None:
        """Epsilon spent so far; ``None``: the run has no ledger yet, or no finite epsilon holds, as with an unsound method.

        The card states whether the guarantee holds.

        Raises:
            UserError: If a file is damaged.
        """
        if self.finished:
            spent: float | None = self._results()["privacy"]["epsilon"]
            return spent
        return Ledger.open(self.ledger).promised_epsilon if self.ledger.is_file() else None

    def __repr__(self) -> str:
        """Shows epsilon, the most important figures, and the folder.

        Of a run that is unfinished, damaged or missing, it shows the folder and this state.
        """
        from dpfed.report.results import most_telling, results_of, shown  # imports scipy, which takes a second

        name = type(self).__name__
        try:
            if not self.finished:
                return f"{name}({str(self.path)!r}, {'unfinished' if self._config.is_file() else 'no run is there'})"
            results = self._results()
            privacy = results["privacy"]
            told = ["no privacy guarantee"]
            if privacy["guarantee"]:
                told = [f"epsilon {round_up(privacy['epsilon'])} at delta {round_up(privacy['delta'])}"]
            for figure in most_telling(results_of(results["evaluations"]), 2):
                before = "" if figure.untrained is None else f" (before training {shown(figure.untrained)})"
                told.append(f"{figure.name} {shown(figure.trained)}{before}")
            return f"{name}({str(self.path)!r}: {'; '.join(told)})"
        except (UserError, KeyError, TypeError, ValueError):
            return f"{name}({str(self.path)!r}, damaged)"

    def _results(self) -> dict[str, Any]:
        results = _json_of(self.results)
        privacy = results.get("privacy") if isinstance(results, dict) else None
        spent = privacy.get("epsilon", "") if isinstance(privacy, dict) else ""
        is_number = isinstance(spent, int | float) and not isinstance(spent, bool) and 0 <= spent < math.inf
        if not (spent is None or is_number):
            raise UserError(f"{self.results} is damaged: restore it. [run-json-damaged]")
        return results

    @property
    def has_key(self) -> bool:
        """Whether the secret key exists, without which an unfinished run cannot continue."""
        return self._key.is_file()

    @property
    def identity(self) -> str:
        """Random id of the run, drawn when its folder was made; a copy of the folder has the same id. "": there is no run.

        Raises:
            UserError: If the file of the id is damaged or cannot be read.
        """
        try:
            return read_text(self._lock) if self._lock.is_file() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self._lock}, which holds the run's id, is damaged ({error}): restore it. [run-id]") from error

    def refuse_odd_entries(self) -> None:
        """Rejects a directory with pipes, broken links, or folders where files belong.

        Reading an entry of this kind would fail late, or never end.

        Raises:
            UserError: If the directory holds an entry of this kind; the message names the first.
        """
        known = {self.checkpoints, self.releases, self.commits, self.model, self.gallery}
        for entry in (entry for folder in (self.path, *known) if folder.is_dir() for entry in folder.iterdir()):
            if entry.is_file() or (entry.is_dir() and (entry in known or entry.suffix in ("", DRAFT))):
                continue
            what = "a folder" if entry.is_dir() else "a link that leads nowhere" if entry.is_symlink() else "not a regular file"
            raise UserError(f"the run is damaged: {entry} is {what}; restore or remove it. [run-entry-odd]")

    @property
    def provenance(self) -> dict[str, Any]:
        """Contents of ``provenance.json``: first day, records, code and hardware of the run, see `dpfed.artifacts.provenance`.

        Raises:
            UserError: If the file is missing or damaged.
        """
        facts: dict[str, Any] | None = _json_of(self._provenance)
        if facts is None:
            raise UserError(f"{self._provenance} is missing: every run writes it when it begins; restore it. [provenance-gone]")
        if wrong := wrong_provenance(facts):
            raise UserError(f"{self._provenance} is damaged: '{wrong}' is missing or malformed; restore it. [provenance-odd]")
        return facts

    def note_environment(self, environment: dict[str, Any]) -> None:
        """Adds to ``provenance.json`` the environment in which the run continues, if it differs from the last one in the file.

        Raises:
            UserError: If ``provenance.json`` is missing or damaged.
        """
        facts = self.provenance
        if facts["environments"][-1] != environment:
            facts["environments"].append(environment)
            self.write(self._provenance, json.dumps(facts, indent=1) + "\n")

    @property
    def disclosures(self) -> set[str]:
        """Names of all uses of the private records other than training; the card must list them.

        Raises:
            UserError: If the file is damaged.
        """
        names = _json_of(self._disclosures)
        if names is None:
            return set()
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{self._disclosures} is damaged: expected a list of names; restore it. [run-disclosures-damaged]")
        return set(names)

    @property
    def privacy_audit(self) -> dict[str, Any] | None:
        """Results of the audit of the claim, see `dpfed.audit.publishing`; ``None``: the claim was not audited.

        Raises:
            UserError: If the file is damaged.
        """
        facts = _json_of(self._privacy_audit)
        if facts is not None and not is_audit(facts):
            raise UserError(f"{self._privacy_audit} is damaged: restore it, or delete it and audit again. [run-audit-damaged]")
        return facts

    def disclose(self, what: str) -> None:
        """Notes, before anything is shown, that the run discloses its private records in a way that epsilon does not cover.

        Args:
            what: Name of the disclosure, such as `dpfed.artifacts.provenance.AUDITED`.

        Raises:
            UserError: If the disclosure cannot be noted, or the file of disclosures is damaged; then nothing may be shown.
        """
        known = self.disclosures
        if what in known:
            return
        try:
            self.write(self._disclosures, json.dumps(sorted({*known, what})) + "\n")
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror or error}), but the run's card must list every evaluation and "
                "audit that uses its private records: evaluate or audit a writable copy of the run. [run-evaluation-unlisted]"
            ) from error

    def config(self) -> Config:
        """Reads the resolved configuration.

        Raises:
            UserError: If ``config.toml`` cannot be read, or is not a valid configuration.
        """
        return read_back(read_toml(self._config, "run's configuration"), str(self._config))

    def refuse_another(self, config: Config) -> None:
        """Rejects a configuration that is not the run's.

        Args:
            config: Configuration with its defaults resolved. A key that it leaves open, such as the digest of starting weights
                that no longer exist, does not count as different.

        Raises:
            UserError: If a key differs that has an effect in either configuration; the message names the first.
        """
        present = self.config()
        given, there = leaves(config.model_dump()), leaves(present.model_dump())
        idle = config.without_effect().keys() & present.without_effect()  # keys without effect may differ
        for key in given | there:  # a method's options may be on one side only
            value, kept = given.get(key), there.get(key)
            left_open = value == "auto" or (key in _CHOSEN and value is None)
            if key not in idle and not left_open and value != kept:
                there_now = f"{key} = {kept!r}" if key in there else f"no {key}"
                wanted = repr(value) if key in given else "nothing of it"
                raise UserError(
                    f"{self.path} holds a run with {there_now}, and the configuration now says {wanted}: change it "
                    "back to resume that run, or choose another folder. [resume-config-changed]",
                    command="On the command line: --run DIR",
                )

    def refuse_other_terms(self, terms: str) -> None:
        """Rejects terms of a federation that are not the run's.

        Raises:
            UserError: If the terms differ, or the run is not a federation's.
        """
        if not self.terms.is_file() or self.terms.read_text(encoding="utf-8") != terms:
            raise UserError(
                f"{self.path} holds a run with other terms of the federation, or with none: choose another folder. "
                "[resume-terms-other]"
            )

    def randomness(self) -> Randomness:
        """Reads the run's secret randomness.

        Raises:
            UserError: If the key is damaged, cannot be read, or is missing; a finished run has no key.
        """
        try:
            master = read_bytes(self._key)
        except FileNotFoundError as error:
            raise UserError(
                f"{self._key} is missing: without this key the run cannot continue; restore it, or start a new run. "
                "[run-key-missing]"
            ) from error
        except OSError as error:
            raise UserError(
                f"{self._key} cannot be read ({error.strerror or error}): without this key the run cannot continue; make it "
                "readable for this user. [run-key-unreadable]"
            ) from error
        if len(master) != KEY_BYTES:
            raise UserError(
                f"{self._key} is damaged: expected {KEY_BYTES} bytes, got {len(master)}; restore it. [run-key-damaged]"
            )
        return Randomness(master)

    def delete_secrets(self) -> None:
        """Deletes the secret key, with which the noise could be removed, and other files that only a resumed run needs."""
        for folder in (self.releases, self.commits, self.features):
            shutil.rmtree(folder, ignore_errors=True)
        self.forget_times()
        self._key.unlink(missing_ok=True)

    def forget_times(self) -> None:
        """Deletes the arrival times of a federation's sites, which are only for watching a running process."""
        for file in (self.arrival_log, self.arrival_log.with_name(f".{self.arrival_log.name}{DRAFT}")):
            with contextlib.suppress(OSError):  # the folder is no longer writable; the run fails elsewhere
                file.unlink(missing_ok=True)

    def locked(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Locks the run for this process during the ``with`` block.

        Args:
            wait: Seconds to wait for another process that has locked the run and may be about to end.

        Raises:
            UserError: If another process has locked the run.
        """
        taken = f"{self.path} is in use by another process, which trains the run or writes its files: wait until it ends."
        return noted_lock(self._lock, taken, wait)

    def append(self, file: Path, line: dict[str, Any]) -> None:
        """Adds one JSON line to one of the run's files."""
        append_line(file, line)

    def metric_lines(self) -> list[dict[str, Any]]:
        """Reads all lines of metrics.jsonl; a last line that a crash cut short is left out.

        Raises:
            UserError: If the file is damaged in any other way.
        """
        try:
            lines = read_lines(self.metrics).entries if self.metrics.exists() else []
            for number, line in enumerate(lines, start=1):
                if not _is_metric(line):
                    raise DamagedLine(number)
            return lines
        except (OSError, DamagedLine) as error:
            raise UserError(
                f"{self.metrics} is damaged ({error}): restore it, or delete it; the run then continues without the "
                "earlier part of its curves. [run-metrics-damaged]"
            ) from error

    def federation_steps(self) -> list[dict[str, Any]]:
        """Returns the last line about each step in a federation's journal, in the order of the steps; without a journal, none.

        Raises:
            UserError: If the journal is damaged.
        """
        lines = Journal(self.journal).lines if self.journal.exists() else []
        return [line for _, line in sorted({line["step"]: line for line in lines}.items())]

    def rewind_metrics(self, step: int) -> None:
        """Removes the metrics of all steps after the given step, because a resumed run writes them again.

        Raises:
            UserError: If metrics.jsonl is damaged.
        """
        kept = [line for line in self.metric_lines() if line["step"] <= step]
        self.write(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, file: Path, text: str) -> None:
        """Replaces one of the run's text files atomically."""
        write_atomically(file, text)


def _is_metric(line: dict[str, Any]) -> bool:
    """Returns whether a line of metrics.jsonl is valid. Only the fields that dpfed reads are checked."""
    step, spent = line.get("step"), line.get("epsilon", 0)
    numbers = isinstance(step, int) and not isinstance(step, bool) and (spent is None or isinstance(spent, int | float))
    drawn = (line[name] for name in ("learning_rate", "noisy_gradient_norm") if line.get(name) is not None)
    numbers = numbers and all(isinstance(value, int | float) and math.isfinite(value) for value in drawn)
    try:
        MetricsWindow.read(line["phase"]) if "phase" in line else None
    except ValueError:
        return False
    return numbers and ("evaluation" not in line or wrong_fact(line["evaluation"]) is None)


def _json_of(file: Path) -> Any:
    """Reads a JSON file of the run; ``None``: the file does not exist."""
    if not file.is_file():
        return None
    try:
        value = json.loads(read_text(file))
        if value is None:  # otherwise taken for a file that does not exist
            raise ValueError("it holds null")
        return value
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged ({error}): restore it. [run-results-damaged]") from error


def _instead(path: Path) -> str:
    """Describes, for an error message, what is at the path instead of a run, and what to do."""
    if any((folder / "site.toml").is_file() for folder in (path, path / "site")):
        return f"it is a site of a federation, and `dpfed watch {path}` shows what the site has spent"
    if path.is_file():
        return "it is a file; give the folder of a run"
    inside = sorted(config.parent for config in path.glob("*/config.toml")) if path.is_dir() else []
    if inside:
        return f"it is a folder of runs; give one of them, such as {inside[0]}"
    if is_store(path):
        return "it is a record store; give the folder of a run that was trained on it"
    if not RunDirectory.unused(path):
        return "it has no config.toml; give a folder that `dpfed pretrain` has made"
    return f"it has no config.toml; `dpfed pretrain CONFIG --run {path}` starts a run"


def _cannot_make(path: Path, error: OSError | ValueError) -> UserError:
    reason = error.strerror or error if isinstance(error, OSError) else error
    return UserError(f"cannot make a run at {path}: {reason}; choose another folder for the run. [run-folder-unusable]")
