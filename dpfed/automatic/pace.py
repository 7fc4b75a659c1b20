"""Estimates how long a run takes on this machine, from timed passes over artificial images; no record is read."""

from __future__ import annotations

import time

import torch

from dpfed.config import Config
from dpfed.models.contract import method_of
from dpfed.models.options import PROCEDURAL
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress
from dpfed.runs.build import Parts, build
from dpfed.runs.public_basis import GENERATED, is_generated_basis_made, kind_of
from dpfed.runs.resolution import changed

_TIMES = 3  # passes; the fastest counts, because other processes slow some down
_VIEWS = 1.25  # factor for making views, which takes a quarter of a pass or less
_GENERATED = 256  # generated public images from which a timed pass samples; a run makes many thousands
_IMAGES = 16  # images in a timed pass of frozen towers


def seconds_of(config: Config, plan: PrivacyPlan, progress: Progress) -> float:
    """Estimates a run's duration in seconds: the time of all noisy steps or, for private moments, of computing the features.

    The estimate leaves out features that earlier runs kept beside the store. It needs neither a procedural initialisation nor a
    basis of generated records, which may not exist yet. If dpfed must still make such a basis, which it does once for each pair
    of towers, the estimate includes the features of the basis's records.

    Args:
        config: Configuration of the run.
        plan: Privacy plan of the run.
        progress: Display of the stages.

    Raises:
        UserError: If `dpfed.runs.build.build` refuses the configuration.
    """
    if config.model.start == PROCEDURAL:
        config = changed(config, model={"start": None})
    closed_form = plan.bounding.method.closed_form
    if closed_form:
        several = kind_of(config) != "random" and config.model.reads_text
        options = {"layers": "several" if several else "last", **config.bounding.options, "basis": "random"}
        parts = build(changed(config, bounding={"options": options}), Randomness.from_seed(0), progress)
    else:
        few: dict[str, object] = {}
        if plan.bounding.method.public_records and config.public.is_generated:
            few = {"generated": max(_GENERATED, config.public.records)}
        parts = build(changed(config, public=few), Randomness.from_seed(0), progress, known=plan)
    progress.note("measuring the model's speed with artificial images")
    if not closed_form:
        return plan.steps * plan.sampling.batch * _seconds_of_a_record(parts) * _VIEWS
    is_made = kind_of(config) != "generated" or is_generated_basis_made(parts.config, parts.model, parts.views)
    generated = 0 if is_made else GENERATED
    return (_without_features(parts) + generated) * _seconds_of_features(parts)


def _without_features(parts: Parts) -> int:
    """Counts the training and held-out records whose features no earlier run kept beside the store."""
    views, store, options = parts.learner.views, parts.store, parts.evaluator.options
    splits = {"train": views.cached} | ({options.split: 0} if parts.evaluator.tasks and options.split != "none" else {})
    rows = {split: store.split(split) for split in splits}
    kept = {split: views.cache.has(parts.model, views.whole, store, rows[split], splits[split]) for split in splits}
    return sum(len(rows[split]) for split in splits if not kept[split])


def _seconds_of_a_record(parts: Parts) -> float:
    """Measures how many seconds a private pass over a few groups of random images takes per record."""
    learner, batch = parts.learner, parts.dummy_batch()
    engine = learner.engine(learner.model, learner.plan, Randomness.from_seed(0), 0)
    groups = len(batch.offsets) - 1
    drawn = groups * learner.plan.bounding.group_size
    fastest = min(_timed(lambda: engine.add_clipped(batch, learner.plan.bounding.bound, engine.zeros())) for _ in range(_TIMES))
    return fastest / drawn


@torch.no_grad()
def _seconds_of_features(parts: Parts) -> float:
    """Measures how many seconds all features of one record take, on images of zeros."""
    views, model, device = parts.learner.views, parts.model.eval(), parts.learner.device
    size = parts.views.size
    images = torch.zeros(_IMAGES, 3, size, size, device=device)
    seconds = min(_timed(lambda: method_of(model, "features")(images)) for _ in range(_TIMES)) / _IMAGES
    seconds *= max(1, parts.plan.bounding.options["views"]) if not parts.config.model.reads_text else 1
    if (tokenizer := views.whole.tokenizer) is not None and parts.config.model.reads_text:
        texts = tokenizer(["a caption of some ordinary length, with ten words"] * _IMAGES).to(device)
        seconds += min(_timed(lambda: method_of(model, "text_features")(texts)) for _ in range(_TIMES)) / _IMAGES
    return seconds


def _timed(work) -> float:  # noqa: ANN001 - any call
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
