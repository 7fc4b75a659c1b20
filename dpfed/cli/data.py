"""`dpfed data`: `import`, `forget`, and `inspect` (`dpfed.cli.inspection`)."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dpfed.cli.inspection import inspect
from dpfed.errors import goes_on

if TYPE_CHECKING:
    from dpfed.data.importers import ImportReport

_CLASSES_NAMED, _PASSED_OVER_NAMED = 5, 12  # most names that a sentence lists

app = typer.Typer(no_args_is_help=True)


Size = Annotated[int | None, typer.Option(help="Store square images with this side, in pixels; default: unchanged files.")]
SkipBroken = Annotated[
    bool,
    typer.Option("--skip-broken", help="Skip unreadable records and unknown files; without this option they stop the import."),
]
Id = Annotated[
    str | None,
    typer.Option(
        help='Source of record ids: a column of a Parquet table, or "content", a hash of the record. Default: the names of the '
        "records in SOURCE, such as a column id; a hash if SOURCE has no names.",
        show_default=False,
    ),
]
Outside = Annotated[bool, typer.Option("--allow-outside", help="Also read files outside SOURCE that tables or links name.")]
Window = Annotated[
    str | None,
    typer.Option(
        help="Window of DICOM images in Hounsfield units: 40,400 is centre 40 and width 400. Default: each file's own.",
        show_default=False,
    ),
]
Splits = Annotated[
    int | None,
    typer.Option(
        help="Level of the folders that are splits: 1 for the folders directly in SOURCE; 0: no folder is a split, so that a "
        "class may be called train. Default: the folders' names decide.",
        show_default=False,
    ),
]


@app.command("import")
def import_(
    source: Annotated[list[str], typer.Argument(help="A data set: a file, a folder, or several tables.", show_default=False)],
    dest: Annotated[str, typer.Argument(help="The record store to make; it must not exist.", show_default=False)],
    format: Annotated[str | None, typer.Option(help="Importer; default: the one that recognises the source.")] = None,
    size: Size = None,
    validation: Annotated[int, typer.Option(help="Number of training records to hold out for validation.")] = 0,
    test: Annotated[int, typer.Option(help="Number of training records to hold out for test.")] = 0,
    skip_broken: SkipBroken = False,
    id: Id = None,
    allow_outside: Outside = False,
    public: Annotated[
        bool, typer.Option("--public", help="Declare that anyone may see these records, and reports may show them.")
    ] = False,
    window: Window = None,
    splits: Splits = None,
) -> None:
    """Import a data set into a record store."""
    from dpfed.console.terminal import say, watching

    say(f"importing {', '.join(source)} into {dest}")
    from dpfed.data.importers import import_records
    from dpfed.data.importers.dicom import parsed_window
    from dpfed.progress import import_progress

    with watching() as progress, goes_on(lambda: f"stopped: {dest} was not made; the same command begins anew"):
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
    """Delete the features of frozen towers that runs kept beside a record store. The store itself stays."""
    from dpfed.console.terminal import say
    from dpfed.errors import UserError
    from dpfed.features import kept
    from dpfed.paths import is_store, path_of

    path = path_of(store, "the record store")
    say(f"looking for features beside {path}")
    freed = kept.forget(path)
    if not freed and not is_store(path):
        raise UserError(
            f"there is no record store at {path}, and no features are kept beside that path: give the store's folder. "
            "[forget-nothing-there]"
        )
    place = kept.place_of(path)
    if place.is_dir():
        _say(f"{place} stays, because it holds files that dpfed did not write: look at them")
    _say(f"deleted the features in {place}: {freed:,} bytes" if freed else f"no features are kept beside {path}")


def _say(sentence: str) -> None:
    """Prints a line without interpreting names in it as markup, and with control characters escaped."""
    from dpfed.console.terminal import console
    from dpfed.data.reasons import visible

    console.print(visible(sentence), markup=False, emoji=False, highlight=False, soft_wrap=True)


def _what_was_converted(report: ImportReport) -> list[str]:
    """Returns sentences on images that were converted, because stock open_clip reads them differently."""
    sentences = [f"converted {what} ({count:,})" for what, count in report.converted.items()]
    if sentences:
        sentences.append(
            "Stock open_clip reads these images differently. Before you use such files with it, convert them to 8-bit RGB in "
            "the same way (docs/data.md says how)."
        )
    return sentences


def _what_is_there_twice(report: ImportReport) -> list[str]:
    """Returns sentences on files with several pictures, pictures that several records share, and classes with similar names."""
    sentences = []
    if report.several:
        sentences.append(
            f"Files with several pictures ({report.several:,}): the first picture of each is used. Unpack the files to use "
            "all pictures."
        )
    if report.repeated:
        sentences.append(
            f"Training records with the picture of another training record: {report.repeated:,}. The guarantee is for one "
            "record: import each picture once, with all its captions."
        )
    if report.shared:
        sentences.append(
            f"Held-out records with the picture of a training record: {report.shared:,}. Figures on them say little about "
            "new pictures: remove each such picture from one of the two splits."
        )
    for label, names in report.alike.items():
        sentences.append(f"Classes of {label} with almost the same name: {_some(list(map(repr, names)), _CLASSES_NAMED)}.")
    return sentences


def _what_was_not_read(report: ImportReport) -> list[str]:
    """Returns sentences on parts of the source that were not read, and on classes without a record."""
    sentences = []
    if report.passed_over:
        named = [f"{name} ({count:,})" for name, count in report.passed_over.items()]
        sentences.append(f"Not read: {_some(named, _PASSED_OVER_NAMED)}.")
    sentences.extend(report.ignored())
    for label, names in report.empty_classes.items():
        sentences.append(f"Classes of {label} without a record ({len(names):,}): {_some(names, _CLASSES_NAMED)}.")
    return sentences


def _some(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _what_is_protected(report: ImportReport) -> list[str]:
    """Returns sentences on what counts as one record, and on units that several records share."""
    sentences = []
    if report.kind == "image-text":
        sentences.append("All captions of an image are ONE record.")
    if report.unit_name:
        sentences.append(
            f"Several records can share one {report.unit_name}. By default a configuration protects each record; "
            f'privacy.unit = "user" protects each {report.unit_name}, with all records that share it. '
            "`dpfed pretrain --data` sets that itself."
        )
    return sentences
