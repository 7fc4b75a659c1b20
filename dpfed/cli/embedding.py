"""`dpfed embed` and `dpfed search`: a run's model on other pictures. Nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(help="A run directory, or its model.", show_default=False)]


def embed(
    run: RunFolder,
    files: Annotated[list[Path], typer.Argument(help="Images, folders of images, or one record store.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The Parquet file to write; it must not exist.")] = Path("features.parquet"),
    contrast: Annotated[
        bool, typer.Option("--contrast", help="Write the embeddings that are compared with texts, instead of the features.")
    ] = False,
) -> None:
    """Write the features of pictures to a Parquet file with the columns name and features."""
    from dpfed.console.terminal import console, say, watching

    say(f"reading {', '.join(map(str, files))}")
    from dpfed.data.named_pictures import pictures_at
    from dpfed.features.parquet import embedded, write_parquet
    from dpfed.files.atomic import refuse_existing

    refuse_existing(out)
    pictures = pictures_at(files)
    with watching() as progress:
        progress.note("loading PyTorch")
        from dpfed.encoder import load

        encoder = load(run)
        made = encoder.embed_images if contrast else encoder.features
        advance = progress.stage("pictures", len(pictures))
        width = write_parquet(out, pictures, embedded(pictures, made, encoder.size, encoder.preprocessing, advance))
    console.print(f"{out}  {len(pictures):,} x {width} float32", highlight=False, soft_wrap=True)
    console.print("[dim]Features are exact functions of the pictures: this file is as private as they are.[/]", soft_wrap=True)


def search(
    run: RunFolder,
    words: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    pictures: Annotated[
        Path | None,
        typer.Option(help="A public store, or a folder of images; default: the run's own, if public.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many names to print.")] = 10,
) -> None:
    """Print the names of the pictures nearest to a text, best first, with their cosines."""
    from dpfed.console.terminal import console, say, watching

    say(f"reading {pictures or run}")
    from dpfed.data.named_pictures import NamedPictures, StoredPictures, pictures_at
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
    """Adds both commands."""
    for command in (embed, search):
        app.command()(command)
