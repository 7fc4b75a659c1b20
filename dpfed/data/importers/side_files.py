"""Recognises, by their names, files and folders that lie beside records but hold no records.

The same names count in folders, in archives, and beside Parquet files and tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

HIDDEN = "hidden files and folders"
_NAMES = "|".join(
    (
        r"\..*",  # the system's, version control's
        r"thumbs\.db|ehthumbs\.db|desktop\.ini|icon\r",
        # Texts about the data set, and scripts that load it.
        r"(read[-_]?me|licen[cs]e|copying|notice|citation|changelog|authors)(\.(txt|md|rst|html|pdf|cff|bib))?",
        r".*\.(md|rst|py|ipynb|sh)",
        r"(md5|sha1|sha256|sha512)sums?(\.txt)?|.*\.(md5|sha1|sha256|sha512|crc)",
        # Of the Hugging Face hub, and of Croissant and Kaggle.
        r"(dataset_infos?|dataset_dict|state)\.json|croissant\.json|dataset-metadata\.json",
        # Of Spark and Databricks, WebDataset and img2dataset, DALI.
        r"_SUCCESS|_metadata|_common_metadata|_(committed|started)_\w+",
        r"_info\.json|sizes\.json|\d+_stats\.json",
        r".*\.idx",
        # Of torchvision and ImageNet.
        r"meta\.bin|ilsvrc2012_devkit_t12\.tar\.gz",
    )
)
_SIDE = re.compile(_NAMES, re.IGNORECASE | re.DOTALL)
# Folders of systems and network drives: copies, small pictures, and what was deleted.
_FOLDERS = re.compile(
    r"\..*|__MACOSX|__pycache__|@eaDir|#recycle|\$RECYCLE\.BIN|System Volume Information|lost\+found", re.IGNORECASE | re.DOTALL
)
_OF_A_SHARD = re.compile(r"(\d+)\.parquet")  # img2dataset writes one beside each archive, or each folder, of the same number


def side_folder(name: str) -> str | None:
    """Returns the name under which a folder without records is counted; ``None``: the folder may hold records.

    Args:
        name: Name of the folder.
    """
    if not _FOLDERS.fullmatch(name):
        return None
    return HIDDEN if name.startswith(".") else name.strip()


def side_file(name: str, there: Callable[[str], bool] = lambda other: False) -> str | None:
    """Returns the name under which a file without records is counted; ``None``: the file may hold records.

    Args:
        name: Name of the file.
        there: Function that says whether a file or folder of a given name lies in the same folder.
    """
    if _SIDE.fullmatch(name):
        return HIDDEN if name.startswith(".") else name.strip()
    shard = _OF_A_SHARD.fullmatch(name)
    if shard and any(there(f"{shard[1]}{ending}") for ending in ("", *ARCHIVES)):
        return "Parquet files about shards"
    return None
