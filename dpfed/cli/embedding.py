"""`dpfed embed` and `dpfed search`: the model of a run, or a public tower, applied to other pictures. Nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpfed.data.named_pictures import NamedPictures
    from dpfed.progress import Progress

RunFolder = Annotated[Path, typer.Argument(help="A run directory, or its model.", show_default=False)]


def embed(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="[RUN] FILES...",
            help="A run directory, or its model (not with --model); then images, folders of images, or one record store.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="A public tower instead of a run: timm/NAME, torchvision/NAME, open_clip/NAME, "
            "sentence-transformers/NAME, or the folder of an open_clip model or of a text tower.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of the image tower that --model names: a tag, whose weights the library fetches, or a local file. "
            "Default: the library's usual weights.",
            show_default=False,
        ),
    ] = None,
    captions: Annotated[
        bool, typer.Option("--captions", help="With --model and a record store: embed the captions with the text tower.")
    ] = False,
    split: Annotated[
        str | None, typer.Option(help="Split of a record store: train, validation or test; default: all.", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: NumPy if it ends in .npy, else Parquet; it must not exist.")
    ] = Path("features.parquet"),
    contrast: Annotated[
        bool, typer.Option("--contrast", help="Write the embeddings that the loss compares, instead of the features.")
    ] = False,
) -> None:
    """Write features of pictures or captions to a Parquet file (columns name and features) or a NumPy file (.npy)."""
    from dpfed.console.terminal import console, say, watching

    files = places[1:] if model is None else places
    _refuse_options(model, weights, captions, contrast, files)
    say(f"reading {', '.join(map(str, files))}")
    from dpfed.data.named_pictures import pictures_at
    from dpfed.errors import UserError
    from dpfed.features.parquet import embedded, write_features
    from dpfed.files.atomic import refuse_existing

    refuse_existing(out)
    if not out.absolute().parent.is_dir():
        raise UserError(
            f"--out {out}: there is no folder {out.absolute().parent}. Make it, or choose another file. [embed-no-folder]"
        )
    pictures = pictures_at(files, split)
    with watching() as progress:
        progress.note("loading PyTorch")
        if model is not None:
            width = _by_tower(model, weights, captions, pictures, out, progress)
        else:
            from dpfed.encoder import load

            encoder = load(places[0])
            made = encoder.embed_images if contrast else encoder.features
            advance = progress.stage("pictures", len(pictures))
            width = write_features(out, pictures, embedded(pictures, made, encoder.size, encoder.preprocessing, advance))
    console.print(f"{out}  {len(pictures):,} x {width} float32", highlight=False, soft_wrap=True)
    console.print(
        "[dim]Features are exact functions of their pictures or captions: this file is as private as they are.[/]",
        soft_wrap=True,
    )


def _refuse_options(model: str | None, weights: str | None, captions: bool, contrast: bool, files: list[Path]) -> None:
    from dpfed.errors import UserError

    if not files:
        raise UserError("expected a run and pictures, or --model NAME and pictures. [embed-files]")
    if model is None and (weights is not None or captions):
        given = "--captions" if weights is None else "--weights"
        raise UserError(f"{given} works with a public tower only: add --model NAME, or leave {given} out. [embed-no-model]")
    if model is not None and contrast:
        raise UserError("--contrast works with a run only: leave out --contrast or --model. [embed-contrast]")


def _by_tower(name: str, weights: str | None, captions: bool, pictures: NamedPictures, out: Path, progress: Progress) -> int:
    """Writes a public tower's features of pictures or captions, and returns their width."""
    from dpfed.automatic.towers import named_tower
    from dpfed.data.named_pictures import StoredPictures
    from dpfed.errors import UserError
    from dpfed.features.parquet import captions_embedded, embedded, write_features

    tower = named_tower(name, weights)
    if not captions and tower.reads_images:
        advance = progress.stage("pictures", len(pictures))
        return write_features(out, pictures, embedded(pictures, tower.images, tower.size, tower.preprocessing, advance))
    if not isinstance(pictures, StoredPictures) or not pictures.captioned:
        raise UserError("a text tower reads captions: give a record store whose records have captions. [embed-captions]")
    return write_features(out, pictures, captions_embedded(pictures, tower.captions, progress.stage("captions", len(pictures))))


def search(
    run: RunFolder,
    words: Annotated[str, typer.Argument(help="Text to search for.", show_default=False)],
    pictures: Annotated[
        Path | None,
        typer.Option(
            help="A public store, or a folder of images; default: the run's store, if public. A model without its run needs "
            "this option.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of names to print.")] = 10,
) -> None:
    """Print the names of the pictures nearest to a text, best first, with their cosines."""
    from dpfed.console.terminal import console, say, watching
    from dpfed.errors import UserError

    if not words.strip():
        raise UserError("the text to search for is empty: expected words, such as 'a red circle'. [search-no-text]")
    say(f"reading {pictures or run}")
    from dpfed.data.named_pictures import StoredPictures, pictures_at
    from dpfed.data.reasons import visible
    from dpfed.live.retrieval import SearchIndex, own_store, public_store
    from dpfed.paths import is_store

    if pictures is None or is_store(pictures):
        among: NamedPictures = StoredPictures(own_store(run) if pictures is None else public_store(pictures))
    else:
        among = pictures_at([pictures])
    with watching() as progress:
        progress.note("loading PyTorch")
        from dpfed.encoder import load

        encoder = load(run)
        encoder.embed_text(words)  # a model without a text tower is refused before anything is embedded
        index = SearchIndex.of(encoder, among, progress.stage("pictures", len(among)))
    numbers, cosines = index.nearest(words, top)
    for name, cosine in zip(among.names(numbers), cosines, strict=True):
        console.print(f"{cosine:6.3f}  {visible(name)}", markup=False, highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Adds both commands to the app."""
    for command in (embed, search):
        app.command()(command)
