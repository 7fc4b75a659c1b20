"""Data sets of the Hugging Face hub, `hf://OWNER/NAME`: their files are fetched, and then imported like any others.

Only `dpfed data import` fetches anything, and only where the user typed such an address. No code of a data set is run.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dpfed.data.importers.listing import harmless
from dpfed.data.importers.table_rows import TABLES
from dpfed.data.store.new_directory import check_destination
from dpfed.errors import UserError
from dpfed.places import proxy_hint

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SCHEME = "hf://"
_ADDRESS = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)(?:@(refs/convert/[\w-]+|refs/pr/\d+|[\w.~^-]+))?(?:/+([^@]*?))?/*")
_MOST_FILES = 100_000
_LONGEST = 1000  # characters of a file's name
_PATIENCE = 30.0  # seconds for the hub to say what it has


@dataclass(frozen=True)
class Address:
    """What an address names.

    Attributes:
        repository: ``OWNER/NAME``.
        revision: a branch, a tag or a commit; ``None``: the newest.
        folder: a folder or file of the repository; empty: all of it.
    """

    repository: str
    revision: str | None
    folder: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads ``hf://OWNER/NAME[@REVISION][/FOLDER]``.

        Raises:
            UserError: for anything else.
        """
        found = _ADDRESS.fullmatch(text)
        if not found or not _stays_inside(found[3] or "."):
            raise UserError(
                f"{text!r} is no address of a data set on the Hugging Face hub: expected {SCHEME}OWNER/NAME, with @REVISION or "
                "/FOLDER behind it where they are wanted."
            )
        return cls(found[1], found[2], (found[3] or "").strip("/"))

    def __str__(self) -> str:
        return f"{self.root}/{self.folder}" if self.folder else self.root

    @property
    def root(self) -> str:
        """The address of the whole data set."""
        return f"{SCHEME}{self.repository}{'@' * bool(self.revision)}{self.revision or ''}"


def is_address(source: object) -> bool:
    """Whether a source is to be fetched."""
    return isinstance(source, str) and source.startswith(SCHEME)


@contextlib.contextmanager
def fetched(text: str, dest: Path, say: Callable[[str], None], api: HfApi | None = None) -> Iterator[Path]:
    """The files of a data set, as a folder beside the new store; it is deleted when the block ends well.

    After an interruption, what is complete is not fetched again.

    Args:
        text: the address.
        dest: of the new store.
        say: told what is fetched, from which commit.
        api: of a hub; ``None``: the one that HF_ENDPOINT names, or huggingface.co, with the user's own token.

    Raises:
        UserError: if there is no such data set, it cannot be had, or does not fit on the disk.
    """
    address = Address.parse(text)
    check_destination(dest)
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as error:
        raise UserError(f"{SCHEME} needs huggingface_hub: pip install 'dpfed[hub]'.") from error
    hub = api or HfApi()
    with _answering(address):
        found = hub.dataset_info(address.repository, revision=address.revision, timeout=_PATIENCE, files_metadata=True)
        sizes = _wanted(address, {file.rfilename: file.size or 0 for file in found.siblings or []})
        total = sum(sizes.values())
        place = dest.with_name(f".{dest.name}.hub")
        _require_room(place.parent, total, address)
        say(
            f"fetching {len(sizes):,} files, {total / 1e6:,.1f} MB, of {SCHEME}{address.repository}@{found.sha}; no code is run"
        )
        folder = place / address.repository.rpartition("/")[2]
        for left in place.glob("*/") if place.is_dir() else ():
            if not (left / ".cache").is_dir():  # of something else
                raise UserError(f"{place} holds something else than a fetched data set: take it away.")
        snapshot_download(
            address.repository,
            repo_type="dataset",
            revision=found.sha,
            local_dir=folder,
            allow_patterns=[_literal(name) for name in sizes],
            endpoint=hub.endpoint,
            token=hub.token,
        )
        _require_all(folder, sizes, address)
    try:
        yield folder / address.folder if address.folder else folder
    except UserError as error:
        raise _in_the_hubs_words(error, folder, address, place) from error
    shutil.rmtree(place)


def _in_the_hubs_words(error: UserError, folder: Path, address: Address, place: Path) -> UserError:
    """A refusal that speaks of the data set's address: its files lie where no user put them, and cannot be renamed."""

    def told(text: str) -> str:
        return re.sub(re.escape(str(folder)) + r"(?=[^\w.-]|[.]?$|[.]\s)", lambda found: address.root, text)

    advice = (
        f" Nothing can be renamed or moved there: choose one of its folders or files, as {address.root}/FOLDER. What was "
        f"fetched stays in {place}, for the next attempt."
    )
    return UserError(told(str(error)) + advice, told(error.public), told(error.command))


def _wanted(address: Address, files: dict[str, int]) -> dict[str, int]:
    """The files below the address's folder that may hold records, by name; the hub may have written anything there.

    Raises:
        UserError: for names that lead elsewhere, too many, or none.
    """
    if len(files) > _MOST_FILES:
        raise UserError(
            f"{address.repository} has {len(files):,} files, more than {_MOST_FILES:,}: name one of its folders, too."
        )
    odd = [name for name in files if not _stays_inside(name)]
    if odd:
        raise UserError(f"{address.repository} names a file {odd[0][:200]!r}, which leads elsewhere: nothing was fetched.")
    below = address.folder
    if PurePosixPath(below).suffix.lower() in TABLES:  # its images lie beside it
        below = PurePosixPath(below).parent.as_posix().removeprefix(".")
    chosen = {name: size for name, size in files.items() if not below or name == below or name.startswith(f"{below}/")}
    chosen = {name: size for name, size in chosen.items() if not any(map(harmless, PurePosixPath(name).parts))}
    if not chosen:
        raise UserError(f"{address.repository} has no files of records{f' below {below}' if below else ''}.")
    return chosen


def _require_all(folder: Path, sizes: dict[str, int], address: Address) -> None:
    """Refuses a fetch that came to an end without all files: the hub's client takes what is there where the hub falls silent.

    What an attempt at another commit left behind is deleted.
    """
    wanted = {folder / name for name in sizes}
    for path in folder.rglob("*"):
        if path.is_file() and path not in wanted and ".cache" not in path.relative_to(folder).parts:
            path.unlink()
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file() or path.is_symlink() or path.stat().st_size != size:
            raise UserError(
                f"{SCHEME}{address.repository} came without {name}, or with another size than the hub says: give the same "
                "command again."
            )


def _stays_inside(name: str) -> bool:
    """Whether a name is that of a file below a folder, on every system."""
    parts = name.replace("\\", "/").split("/")
    return (
        len(name) <= _LONGEST
        and name.isprintable()
        and not name.startswith(("/", "\\"))
        and ".." not in parts
        and ":" not in name
    )


def _literal(name: str) -> str:
    """A pattern that this name alone fits."""
    return re.sub(r"([\[*?])", r"[\1]", name)


def _require_room(folder: Path, size: int, address: Address) -> None:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if 2 * size > free:  # the files, and the store that is made of them
        raise UserError(
            f"{address.repository} has {size / 1e9:,.1f} GB of files, and with the store that is made of them needs twice as "
            f"much, but {folder} has {free / 1e9:,.1f} GB left: name one of its folders, or choose another disk."
        )


@contextlib.contextmanager
def _answering(address: Address) -> Iterator[None]:
    """What the hub refuses, in one sentence."""
    from huggingface_hub import errors

    where = f"{SCHEME}{address.repository}"
    reasons: list[tuple[Any, str]] = [
        (errors.GatedRepoError, "its owner must let you in first: ask on its page, then log in with `hf auth login`"),
        (errors.RevisionNotFoundError, f"it has no revision {address.revision!r}"),
        (
            errors.RepositoryNotFoundError,
            "there is no such data set, or it is private: `hf auth login` shows the hub who you are",
        ),
        (errors.HFValidationError, "the hub does not allow such a name"),
        ((errors.HfHubHTTPError, errors.EntryNotFoundError), "the hub refuses"),
    ]
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        for kind, reason in reasons:
            if isinstance(error, kind):
                detail = f" ({str(error).splitlines()[0][:200]})" if reason == "the hub refuses" else ""
                raise UserError(f"{where} cannot be fetched: {reason}{detail}.") from error
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            raise UserError(
                f"{where} cannot be fetched: what answers is no hub, but perhaps the login page of a network or of a proxy."
            ) from error
        if isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "requests", "httpcore")):
            detail = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise UserError(
                f"{where} cannot be fetched: the hub does not answer ({detail}). The same command goes on with what is there."
                f"{proxy_hint()}"
            ) from error
        raise
