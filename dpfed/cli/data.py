"""`dpfed data`: `import`, `forget`, and `inspect` (`dpfed.cli.inspection`)."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dpfed.cli.inspection import inspect
from dpfed.errors import goes_on

if TYPE_CHECKING:
    from dpfed.data.importers import ImportReport

_CLASSES_NAMED, _PASSED_OVER_NAMED = 5, 12

app = typer.Typer(no_args_is_help=True)


Size = Annotated[int | None, typer.Option(help="Store square images of this side, pixels; default: files as they are.")]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Skip unreadable records and unknown files instead of refusing.")
]
Id = Annotated[
    str | None,
    typer.Option(
        help='What names a record: a column of Parquet, or "content", a hash of the record. Default: its own name.',
        show_default=False,
    ),
]
Outside = Annotated[bool, typer.Option("--allow-outside", help="Also read files outside of SOURCE that tables or links name.")]
Window = Annotated[
    str | None,
    typer.Option(
        help="Of DICOM files: centre and width, such as 40,400 Hounsfield units. Default: each file's own.", show_default=False
    ),
]
Splits = Annotated[
    int | None,
    typer.Option(
        help="Number of the folder below SOURCE that is an image's split; 0: none is, a class may be called train. Default: by "
        "the folders' names.",
        show_default=False,
    ),
]


@app.command("import")
def import_(
    source: Annotated[list[str], typer.Argument(help="A data set: a file, a folder, or several tables.", show_default=False)],
    dest: Annotated[str, typer.Argument(help="The record store to make; must not exist.", show_default=False)],
    format: Annotated[str | None, typer.Option(help="Importer; default: the one that recognises the source.")] = None,
    size: Size = None,
    validation: Annotated[int, typer.Option(help="Training records to hold out for validation.")] = 0,
    test: Annotated[int, typer.Option(help="Training records to hold out for test.")] = 0,
    skip_broken: SkipBroken = False,
    id: Id = None,
    allow_outside: Outside = False,
    public: Annotated[bool, typer.Option("--public", help="Anyone may see these records; reports may show them.")] = False,
    window: Window = None,
    splits: Splits = None,
) -> None:
    """Import a data set into a record store."""
    from dpfed.console.terminal import say, watching

    say(f"importing {', '.join(source)} into {dest}")
    from dpfed.data.importers import import_records
    from dpfed.data.importers.dicom import parsed_window
    from dpfed.progress import import_progress

    with watching() as progress, goes_on(lambda: f"stopped: there is no {dest}; the same command begins anew"):
        report = import_records(
            source if len(source) > 1 else source[0],
            dest,
            format,
            size,
            validation,
            test,
            skip_broken,
            public,
            progress=import_progress(progress),
            id=id,
            allow_outside=allow_outside,
            watch=import_progress(progress, "files found"),
            say=progress.note,
            surveyed=import_progress(progress, "archives read"),
            window=None if window is None else parsed_window(window),
            splits=splits,
        )
    _show(report)


def _show(report: ImportReport) -> None:
    from dpfed.data.reasons import by_reason

    counts = ", ".join(f"{count:,} {split}" for split, count in report.counts.items())
    _say(f"{report.path}: {report.kind} records from {report.format}: {counts}")
    rate = (sum(report.counts.values()) + len(report.skipped)) / max(report.seconds, 0.001)
    _say(f"in {datetime.timedelta(seconds=round(report.seconds))}: {rate:,.0f} records/s")
    for sentence in (
        *(f"skipped {group}" for group in by_reason(report.skipped)),
        *_what_was_converted(report),
        *_what_is_there_twice(report),
        *_what_is_protected(report),
        *_what_was_not_read(report),
    ):
        _say(sentence)


app.command()(inspect)


@app.command()
def forget(store: Annotated[str, typer.Argument(help="A record store, or the path where it was.", show_default=False)]) -> None:
    """Delete the features of frozen towers that runs have kept beside a record store, but not the store."""
    from dpfed.console.terminal import say
    from dpfed.errors import UserError
    from dpfed.features import kept
    from dpfed.paths import is_store, path_of

    path = path_of(store, "the record store")
    say(f"looking for features beside {path}")
    freed = kept.forget(path)
    if not freed and not is_store(path):
        raise UserError(
            f"there is no record store at {path}, and no features are kept beside that place: give the store's folder. "
            "[forget-nothing-there]"
        )
    _say(f"deleted {kept.place_of(path)}: {freed:,} bytes" if freed else f"no features are kept beside {path}")


def _say(sentence: str) -> None:
    """Prints a line, whatever the names in it look like."""
    from dpfed.console.terminal import console
    from dpfed.data.reasons import visible

    console.print(visible(sentence), markup=False, emoji=False, highlight=False, soft_wrap=True)


def _what_was_converted(report: ImportReport) -> list[str]:
    """Images that stock open_clip would not show as they were stored."""
    sentences = [f"converted {what} ({count:,})" for what, count in report.converted.items()]
    if sentences:
        sentences.append(
            "Stock open_clip reads these images differently. Before you give such files to it, convert them to 8-bit RGB in "
            "the same way (docs/data.md says how)."
        )
    return sentences


def _what_is_there_twice(report: ImportReport) -> list[str]:
    """Sentences on files with several pictures, pictures of several records, and classes of nearly the same name."""
    sentences = []
    if report.several:
        sentences.append(
            f"Files with several pictures ({report.several:,}): the first picture of each is stored. Unpack them if all count."
        )
    if report.repeated:
        sentences.append(
            f"Training records that show the picture of another one: {report.repeated:,}. The guarantee is for one record: "
            "import each picture once, with all its captions."
        )
    if report.shared:
        sentences.append(
            f"Held-out records that show the picture of a training record: {report.shared:,}. Figures on them say little of "
            "new pictures: remove them from one of the two."
        )
    for label, names in report.alike.items():
        sentences.append(f"Classes of {label} with nearly one name: {_some(list(map(repr, names)), _CLASSES_NAMED)}.")
    return sentences


def _what_was_not_read(report: ImportReport) -> list[str]:
    """What the source holds beside its records, and what nobody would miss until it is missed."""
    sentences = []
    if report.passed_over:
        named = [f"{name} ({count:,})" for name, count in report.passed_over.items()]
        sentences.append(f"Passed over: {_some(named, _PASSED_OVER_NAMED)}.")
    sentences.extend(report.ignored())
    for label, names in report.empty_classes.items():
        sentences.append(f"Classes of {label} without a record ({len(names):,}): {_some(names, _CLASSES_NAMED)}.")
    return sentences


def _some(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _what_is_protected(report: ImportReport) -> list[str]:
    sentences = []
    if report.kind == "image-text":
        sentences.append("All captions of an image are ONE record.")
    if report.unit_name:
        sentences.append(
            f"Several records can share one {report.unit_name}. By default a run protects each record; "
            f'privacy.unit = "user" protects each {report.unit_name}, with all records that share it.'
        )
    return sentences
