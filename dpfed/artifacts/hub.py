"""A run's model on the Hugging Face hub: what `dpfed export --hub` writes, uploaded."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.export import export_model
from dpfed.artifacts.view import results_in
from dpfed.errors import UserError

_REPO = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}")


def push(
    folder: Path,
    repo: str,
    license: str | None,
    public: bool,
    agreed: Callable[[list[Path]], bool],
) -> str | None:
    """Uploads the model of a finished run with its privacy card.

    Args:
        folder: a run directory.
        repo: ``OWNER/NAME``; it is made, private or public, unless it is there.
        license: see `export_model`.
        public: everybody may see a repository that is made.
        agreed: is shown the files, and says whether they may be uploaded.

    Returns:
        The address of the commit; ``None``: not agreed, and nothing was sent.

    Raises:
        UserError: for a run without a privacy card or a guarantee, a wrong name, or if the hub refuses.
    """
    run = RunDirectory.open(folder)
    if not _REPO.fullmatch(repo):
        raise UserError(f"{repo} is no repository of the hub: expected OWNER/NAME.")
    if run.finished and not (run.card.is_file() and results_in(run.results)["privacy"]["guarantee"]):
        raise UserError(f"{folder} has no privacy card with a guarantee: a model without one is not uploaded.")
    with tempfile.TemporaryDirectory() as place:
        files = export_model(run.path, Path(place, "model"), hub=True, license=license)
        from huggingface_hub import HfApi  # export_model refuses where it is missing

        page = Path(place, "model", "README.md")
        page.write_text(page.read_text(encoding="utf-8").replace("OWNER/NAME", repo), encoding="utf-8")
        if not agreed(files):
            return None
        try:
            api = HfApi()
            api.create_repo(repo, private=not public, exist_ok=True)
            commit = api.upload_folder(repo_id=repo, folder_path=Path(place, "model"), commit_message="Model and privacy card")
        except Exception as error:  # of the network, of the hub, of a token that is missing
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UserError(f"the hub did not take {repo} ({reason}): `hf auth login` says who you are.") from error
    return str(commit.commit_url)
