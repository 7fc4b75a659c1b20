"""Writes the page of a model for the Hugging Face hub: ``README.md`` with metadata and the privacy card."""

from __future__ import annotations

import re
from typing import Any

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import results_in, text_of
from dpfed.errors import UserError
from dpfed.models.description import describe
from dpfed.report.results import results_of

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_LOADING = {
    "open_clip": (
        'import open_clip\n\nmodel, _, preprocess = open_clip.create_model_and_transforms("hf-hub:OWNER/NAME")\n'
        'tokenizer = open_clip.get_tokenizer("hf-hub:OWNER/NAME")'
    ),
    # timm's own transform has these steps in another order, or with another border colour.
    "timm": (
        "import timm\nfrom timm.data.transforms import CenterCropOrPad, ResizeKeepRatio\n"
        "from torchvision import transforms as T\n\n"
        'model = timm.create_model("hf-hub:OWNER/NAME", pretrained=True).eval()\n'
        "how = T.InterpolationMode.{interpolation}\n"
        'transform = T.Compose([{resize}, T.Lambda(lambda image: image.convert("RGB")), T.ToTensor(), '
        "T.Normalize({mean}, {std})])"
    ),
    "dpfed": (
        "import dpfed\nfrom huggingface_hub import snapshot_download\n\n"
        'encoder = dpfed.load(snapshot_download("OWNER/NAME"))\nfeatures = encoder.features(images)'
    ),
}


def model_card(run: RunDirectory, license: str | None) -> str:
    """Returns the text of ``README.md``.

    Evaluation metrics are exact functions of held-out records, and no epsilon covers them. So the page shows the metrics only
    if the records are public.

    Args:
        run: A finished run.
        license: License of the weights, by its name on the hub; ``None``: the page names no license.

    Raises:
        UserError: If the license has no valid name, huggingface_hub is not installed, or a file of the run is missing or
            damaged.
    """
    if license is not None and not _LICENSE.fullmatch(license):
        raise UserError(f"--license {license!r}: expected a name that the hub knows, such as apache-2.0. [export-license-odd]")
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError as error:
        raise UserError("--hub needs the package huggingface_hub: pip install 'dpfed[hub]'. [export-hub-package]") from error
    results, description = results_in(run.results), describe(run.model)
    privacy, name = results["privacy"], str(results.get("name"))
    lacking = [key for key in ("guarantee", "accountant") if key not in privacy]
    if lacking or "name" not in results:
        key = f"privacy.{lacking[0]}" if lacking else "name"
        raise UserError(f"{run.results} is damaged: it lacks '{key}'; restore it. [export-results-lack]")
    facts = run.provenance
    # Private records have a keyed fingerprint, or none: a data set of the user's own has no key.
    public = facts["data"]["keyed"] is False and facts["data"]["fingerprint"] is not None
    reads_text = description["model"]["kind"] != "image"
    task = "zero-shot-image-classification" if reads_text else "image-feature-extraction"
    model, library = description["model"], "dpfed"
    if model["kind"] == "open_clip":
        library = "open_clip"
    elif str(model.get("image", "")).startswith("timm/"):
        library = "timm"
    evaluated = (
        []
        if not public
        else [
            EvalResult(
                task_type=task,
                dataset_type="image-text" if reads_text else "image",
                dataset_name=str(facts["data"]["name"]),
                dataset_split=figure.split,
                metric_type=figure.name,
                metric_value=round(figure.trained, 4),
            )
            for figure in results_of(results["evaluations"])
            if figure.trained is not None
        ]
    )
    data = ModelCardData(
        license=license,
        library_name=library,
        pipeline_tag=task,
        tags=["dpfed", "contrastive-learning", *(["differential-privacy"] if privacy["guarantee"] else [])],
        model_name=name if evaluated else None,
        eval_results=evaluated or None,
        privacy=_privacy(privacy),
    )
    page = run.no_card if run.no_card.exists() else run.card
    deeper = re.sub(r"^(#+ )", r"#\1", text_of(page), flags=re.MULTILINE)  # headings one level deeper
    code = loading_code(library, description)
    return (
        f"---\n{data.to_yaml()}\n---\n\n# {name}\n\n{_lead(privacy)}\n\n```python\n{code}\n```\n\n"
        f"{_about_figures(public, bool(evaluated))}\n\n{deeper}"
    )


def loading_code(library: str, description: dict[str, Any]) -> str:
    """Returns Python code that loads the model and prepares images as in training.

    Args:
        library: Library that loads the model: ``"timm"``, ``"open_clip"`` or ``"dpfed"``.
        description: Description of the model (`dpfed.models.description.describe`).
    """
    if library != "timm":
        return _LOADING[library]
    size = description["image_size"]
    steps = {
        "crop": f"T.Resize({size}, how), T.CenterCrop({size})",
        "squash": f"T.Resize(({size}, {size}), how)",
        "pad": f"ResizeKeepRatio({size}, longest=1.0, interpolation=how.value), CenterCropOrPad({size}, fill=0)",
    }
    normalisation = description["normalisation"]
    return _LOADING[library].format(
        interpolation=description.get("interpolation", "bicubic").upper(),
        resize=steps[description.get("resize", "crop")],
        mean=normalisation["mean"],
        std=normalisation["std"],
    )


def _privacy(privacy: dict[str, Any]) -> dict[str, Any]:
    if not privacy["guarantee"]:
        return {"guarantee": False}
    return {
        "guarantee": True,
        **{name: privacy[name] for name in ("epsilon", "delta", "accountant")},
        "unit": privacy.get("unit", "record"),
    }


def _lead(privacy: dict[str, Any]) -> str:
    if not privacy["guarantee"]:
        return "**Trained without a guarantee of privacy.** The text below explains why."
    return (
        "Pretrained with dpfed under differential privacy. The privacy card below says what is guaranteed, to whom, and what "
        "is not."
    )


def _about_figures(public: bool, evaluated: bool) -> str:
    if public and not evaluated:
        return "The records are public, and the run measured no evaluation figures."
    if public:
        return "The records are public, and the evaluation figures are in this page's metadata."
    return "Evaluation figures are not on this page: they are exact functions of held-out records, and no epsilon covers them."
