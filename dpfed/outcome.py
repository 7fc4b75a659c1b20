"""What a run leaves behind beside its model: results.json, the privacy card, the report."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from dpfed import __version__
from dpfed.evaluation.suite import tasks_of
from dpfed.federation.journal import Journal
from dpfed.federation.statement import of_federation
from dpfed.models.summary import Trained, trained_part
from dpfed.plan import PrivacyPlan
from dpfed.privacy.ledger import Ledger
from dpfed.report.card import (
    FIXED_SEED,
    LABELLED_BANK,
    NOT_PRIVATE,
    NOT_PROTECTED,
    RAW_DIAGNOSTICS,
    STARTING_WEIGHTS,
    UNSOUND,
    CardFacts,
    Mark,
    is_void,
    privacy_card,
    shared_unit,
)
from dpfed.report.gallery import build_gallery
from dpfed.report.html import write_report
from dpfed.report.run_view import RunView
from dpfed.run import RunDirectory
from dpfed.training.session import Parts

_IMAGE = "one record: an image"
_CAPTIONED = "one record: an image with all its captions, of which each step draws one"
_COVERED = (
    "Covered by the guarantee: the parameters after each step (checkpoints/, model/), the ledger, and in metrics.jsonl "
    "epsilon, learning rate and the norm of the noisy gradient. They follow from noisy sums only.",
    "Not covered: evaluation figures (results.json, report.html, and their lines in metrics.jsonl), which are exact.",
)
_ONE_PROCESS = "central: one process holds the records, the model and the noise"
_ONE_CLUSTER = (
    "central: up to {} workers of one cluster hold the records; sums travel between them without noise, and one of them adds it"
)
_NOTHING_COVERED = "Nothing is covered: there is noise in what this run wrote, and nobody knows whether it is enough."
_ALL_EXACT = "Nothing is covered: all that this run wrote follows from the records exactly."


def write_outcome(run: RunDirectory, parts: Parts, ledger: Ledger) -> None:
    """Writes results, card and report of a finished run; results.json last, for it marks the run as finished."""
    facts = card_facts(parts, ledger)
    if parts.terms:
        facts = of_federation(facts, parts.terms, Journal(run.journal), simulated=run.simulation.is_file())
    run.write(run.card if facts.sound else run.no_card, privacy_card(facts))
    gallery = build_gallery(
        parts.model, parts.store, parts.read, parts.config, parts.views.plain, parts.tokenizer, parts.device
    )
    if gallery is not None:
        gallery.write(run.gallery)
    results = results_of_run(run, parts, ledger, facts)
    config = parts.config
    view = RunView(config.name, str(run.path), config.dump(), results, run.metric_lines(), privacy_card(facts), gallery)
    write_report(run.report, [view])
    run.write(run.results, json.dumps(results, indent=2, allow_nan=False) + "\n")


def results_of_run(run: RunDirectory, parts: Parts, ledger: Ledger, facts: CardFacts) -> dict[str, Any]:
    """The content of results.json."""
    plan = parts.plan
    privacy = {
        "method": plan.method,
        "unit": plan.unit,
        "per_unit": plan.per_unit,
        "epsilon": facts.epsilon_spent,
        "delta": plan.delta,
        "accountant": plan.accountant,
        "guarantee": not is_void(privacy_card(facts)),
        **({f"epsilon_{facts.other_accountant}": facts.other_epsilon} if facts.other_accountant else {}),
        "noise_multiplier": plan.noise_multiplier,
        "sensitivity": plan.sensitivity,
        "sampling_rate": plan.sampling_rate,
        "steps_charged": ledger.charged,
        "records": plan.records,
        "batch": plan.batch,
        "group_size": None if plan.how.whole_batch else plan.group_size,
        "groups": plan.groups,
        "divisor": plan.divisor,
        "clip_norm": plan.bound,
        "noise_std": plan.noise_std,
        "sound": plan.how.sound,
        "max_batch": plan.max_batch,
        "options": plan.options,
    }
    privacy = {name: None if value == math.inf else value for name, value in privacy.items()}  # JSON has no infinity
    evaluations = [line["evaluation"] for line in run.metric_lines() if "evaluation" in line]
    versions = {"dpfed": __version__, "torch": torch.__version__}
    return {"name": parts.config.name, "privacy": privacy, "evaluations": evaluations, "versions": versions}


def card_facts(parts: Parts, ledger: Ledger) -> CardFacts:
    """What the privacy card of a run states, from its plan and its ledger."""
    plan, config = parts.plan, parts.config
    other = plan.other_accountant
    trained = trained_part(parts.model, config)
    protected = (_unit_name(parts) or "unit") if plan.unit == "unit" else "record"
    unit = _CAPTIONED if config.model.reads_text else _IMAGE
    sampler = f"Poisson: every {protected} is drawn independently"
    if plan.how.sampling == "fixed":
        sampler = f"fixed size: {plan.batch:,} {protected}s without replacement"
    grouping = f"every drawn {protected} chooses one of the K groups independently"
    if plan.how.whole_batch:
        grouping = f"all drawn {protected}s make one batch"
        grouping += "" if plan.max_batch is None else f"; of more than {plan.max_batch:,}, so many are kept"
    if plan.unit == "unit":
        where = " at one site" if parts.terms else ""
        unit = f"one {protected}: all records{where} that share a value of '{protected}' (a record that names none stands for "
        unit += "itself)"
        sampler += f"; of a drawn {protected}, at most {plan.per_unit} of its records take part"
    return CardFacts(
        name=config.name,
        version=__version__,
        unit=unit,
        protected=protected,
        adjacency=("replace" if plan.how.sampling == "fixed" else "add or remove")
        + f" one {protected}"
        + (" with all its records" if plan.unit == "unit" else ""),
        trained=str(trained),
        epsilon_spent=ledger.epsilon,
        epsilon_planned=plan.epsilon(),
        delta=plan.delta,
        accountant=plan.accountant,
        other_accountant=other or "",
        other_epsilon=None if other is None else plan.epsilon(ledger.charged, other),
        steps_charged=ledger.charged,
        steps_planned=plan.steps,
        records=plan.records,
        sampler=sampler,
        sampling_rate=plan.sampling_rate,
        expected_batch=plan.batch,
        method=f"{plan.how.title}: {plan.how.claim}",
        grouping=grouping,
        groups=plan.groups,
        group_size=None if plan.how.whole_batch else plan.group_size,
        max_group_size=plan.max_group_size,
        clip_norm=plan.bound,
        noise_multiplier=plan.noise_multiplier,
        sensitivity=plan.sensitivity,
        noise_std=plan.noise_std,
        trust_mode=_ONE_PROCESS if ledger.owners == 1 else _ONE_CLUSTER.format(ledger.owners),
        outputs=_COVERED if plan.promises else (_NOTHING_COVERED if plan.private else _ALL_EXACT,),
        marks=_marks(parts, ledger),
        not_protected=_not_protected(parts, trained),
        complete=ledger.charged >= plan.steps,
        options=", ".join(f"{name} = {value}" for name, value in plan.options.items()),
        released=_released(plan),
        sound=plan.how.sound,
    )


def _released(plan: PrivacyPlan) -> str:
    """The noise of what a method releases beside the sum: what the sum's noise leaves of sigma's privacy."""
    rest = 1 - plan.how.gradient_share(plan)
    if not rest:
        return ""
    return f"noise multiplier {plan.noise_multiplier / math.sqrt(rest):.6g}; with the sum's, that of sigma on one sample"


def _marks(parts: Parts, ledger: Ledger) -> tuple[Mark, ...]:
    if not parts.plan.private:
        return (NOT_PRIVATE,)
    store = parts.store
    marks = [UNSOUND] * (not parts.plan.how.sound)
    marks += [FIXED_SEED] * ledger.marks.get("fixed_seed", False)
    marks += [RAW_DIAGNOSTICS] * ledger.marks.get("raw_diagnostics", False)
    marks += [LABELLED_BANK] * (not store.public and bool({"knn", "linear"} & set(tasks_of(store, parts.config))))
    if (name := _unit_name(parts)) is not None and parts.plan.unit == "record":
        marks.append(shared_unit(name))
    return tuple(marks)


def _unit_name(parts: Parts) -> str | None:
    """What the training records call a unit: in a federation, those of the sites."""
    return parts.terms.unit_name if parts.terms else parts.store.unit_name


def _not_protected(parts: Parts, trained: Trained) -> tuple[str, ...]:
    if not parts.plan.promises:
        return ("All records.",)
    return NOT_PROTECTED if trained.start == "random" else (STARTING_WEIGHTS, *NOT_PROTECTED)
