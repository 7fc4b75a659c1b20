"""Writes the artifacts of a run that stand beside its model: results.json, the privacy card and the report."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from dpfed import __version__
from dpfed.artifacts import provenance
from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import AUDITED, LABELLED_FIGURES, uses_labelled_bank, with_origin
from dpfed.artifacts.verification import ledger_of
from dpfed.building.model import trained_of
from dpfed.data.store.records import RecordStore
from dpfed.evaluation.tasks import tasks_of
from dpfed.models.folder import weights_digest
from dpfed.models.moments import ATTRIBUTE, MomentHeads, layers_of
from dpfed.models.summary import Trained
from dpfed.objectives import FOREIGN
from dpfed.privacy.epsilon_curve import spent_curve
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.method import FOREIGN_METHODS
from dpfed.privacy.plan import PrivacyPlan
from dpfed.protocol.statement import facts_of_federation, terms_at
from dpfed.report.audit import on_card
from dpfed.report.board import board_page
from dpfed.report.card import card_digest, is_void, privacy_card
from dpfed.report.facts import (
    ASSUMED_OF_BITS,
    AUDITS,
    BASIS_RECORDS,
    CONTRADICTED,
    DECLARED_PUBLIC,
    FIXED_SEED,
    LABELLED_BANK,
    LAST_BITS,
    NOT_PRIVATE,
    NOT_PROTECTED,
    PUBLIC_RECORDS,
    SHARED_PASSES,
    STARTING_WEIGHTS,
    UNSOUND,
    CardFacts,
    Mark,
    foreign_loss,
    foreign_method,
    own_part,
    shared_unit,
)
from dpfed.report.gallery import Gallery
from dpfed.report.html import write_report
from dpfed.report.pictures import build_gallery
from dpfed.report.view import RunView
from dpfed.runs.budgeting import stated
from dpfed.runs.build import Parts

_IMAGE = "one record: an image"
_WITH_CAPTIONS = "one record: an image with all its captions"
_CAPTIONED = f"{_WITH_CAPTIONS}, of which each step draws one"
_COVERED = (
    "Covered by the guarantee: the parameters after each step (checkpoints/, model/), the ledger, and three figures in "
    "metrics.jsonl (epsilon, learning rate and the norm of the noisy average). All of these follow from noisy sums only.",
    "Not covered: evaluation figures (results.json, report.html, and their lines in metrics.jsonl), which are exact.",
)
_PROGRESS = (
    "Covered by the guarantee, too: the training loss, the clip rate and a quantile of the gradients' norms in metrics.jsonl "
    "and report.html, as means over {} steps with noise. Card and report state how far they may be off."
)
_ONE_PROCESS = "central: one process holds the records, the model and the noise"
_ONE_CLUSTER = (
    "central: up to {} workers of one cluster hold the records; sums travel between them without noise, and one of them adds it"
)
_RECORDS = "The records, and the record store that holds them: only those who hold them now may have them."
_RECORDS_OF_SITES = "Each site's records, and the record store that holds them: only that site may have them."
_KEY = (
    "`secret.key` in the run's folder: whoever has it can repeat all random draws, and subtract the noise. The file exists "
    "until the run is finished; the run then deletes it. Delete copies and backups of it, too."
)
_KEY_OF_SERVER = (
    "`secret.key` in the run's folder: where the server adds the noise, whoever has this key can compute the noise and "
    "subtract it. The file exists until the run is finished; the run then deletes it. Delete copies and backups of it, too."
)
_KEYS_OF_SITES = (
    "Each site's `secret.key`, from which its random draws come, and `identity.key`, with which it signs: only that site may "
    "have them."
)
_FEATURES = (
    "`features/` in the run's folder, with the frozen towers' features of the records. Features reveal as much as the records. "
    "The folder is deleted when the run ends."
)
_KEPT_FEATURES = (
    "The frozen towers' features of the records, which reveal as much as the records: they stay beside {} record store, in "
    "`STORE.features/`, until somebody deletes them (`dpfed data forget STORE`)."
)
_NOTHING_COVERED = "Nothing is covered: what this run wrote has noise, but no proof shows that the noise is enough."
_ALL_EXACT = "Nothing is covered: all that this run wrote is an exact function of the records."


def write_outcome(run: RunDirectory, parts: Parts, ledger: Ledger, untrained: nn.Module | None = None) -> None:
    """Writes results, card and report of a finished run; results.json last, because it marks the run as finished.

    Args:
        run: Directory of the run.
        parts: Parts of the run.
        ledger: Ledger of the run.
        untrained: Model before training, for pictures of public records; ``None``: the pictures show the trained model only.
    """
    read, embedder = functools.partial(parts.views.read, parts.store), parts.evaluator.embedder
    before = None if untrained is None else embedder(untrained)
    gallery = build_gallery(embedder(parts.model), parts.store, read, parts.config, before)
    if gallery is not None:
        gallery.write(run.gallery)
    facts = facts_of_run(run, parts, ledger)
    results = results_of_run(run, parts, ledger, facts)
    _write_artifacts(run, facts, results, ledger)
    run.write(run.results, json.dumps(results, indent=2, allow_nan=False) + "\n")


def rewrite_artifacts(run: RunDirectory, parts: Parts, results: dict[str, Any]) -> None:
    """Writes card and report of a finished run again; the card then has every mark (warning) that applies by now.

    Args:
        run: Directory of the run, locked by the caller.
        parts: Parts of the run; their evaluation may differ from the run's own.
        results: Content that results.json has or is about to get; this function adds the ledger's hash to it.
    """
    ledger, stored = ledger_of(run), run.config()
    config = parts.config.model_copy(update={"evaluation": stored.evaluation})
    tasks = tasks_of(parts.store, stored.evaluation, stored.model)
    evaluator = dataclasses.replace(parts.evaluator, options=stored.evaluation, tasks=tasks)
    learner = parts.learner.replace(plan=ledger.plan)
    parts = dataclasses.replace(parts, config=config, learner=learner, evaluator=evaluator, terms=terms_at(run.terms))
    results["run"]["ledger"] = ledger.head
    _write_artifacts(run, facts_of_run(run, parts, ledger, results["evaluations"]), results, ledger)


def _write_artifacts(run: RunDirectory, facts: CardFacts, results: dict[str, Any], ledger: Ledger) -> None:
    """Writes card, page for ethics boards and report. The ledger gets hashes of card and weights for `dpfed privacy verify`."""
    card = privacy_card(facts)
    run.write(run.card if facts.plan.bounding.method.sound else run.no_card, card)
    run.write(run.board, board_page(facts))
    gallery = Gallery.read(run.gallery) if run.gallery.is_dir() else None
    config = run.config()
    about = config.name, str(run.path), config.dump(), results, run.metric_lines(), card, spent_curve(ledger)
    write_report(run.report, [RunView(*about, gallery, run.privacy_audit, run.federation_steps())])
    ledger.note_artifacts(card_digest(card), weights_digest(run.model))


def facts_of_run(run: RunDirectory, parts: Parts, ledger: Ledger, evaluations: Sequence[dict[str, Any]] = ()) -> CardFacts:
    """Collects the facts on the card of a run: its plan and ledger, its federation, and all later releases about its records.

    Args:
        run: Directory of the run.
        parts: Parts of the run.
        ledger: Ledger of the run.
        evaluations: Figures in addition to those in metrics.jsonl, in the form of results.json.
    """
    disclosed = run.disclosures
    figures = [*_evaluations(run), *evaluations]
    if not parts.store.public and uses_labelled_bank(figures=[item["name"] for item in figures]):
        disclosed.add(LABELLED_FIGURES)
    facts = card_facts(parts, ledger, disclosed)
    if parts.terms:
        facts = facts_of_federation(facts, run.journal, run.simulation.is_file(), parts.terms)
    institutions = parts.terms is not None and not run.simulation.is_file()
    written = run.provenance
    facts = with_origin(facts, written.get("start"))
    made = provenance.rows(run.identity, written, federation=institutions)
    proof = ((provenance.LEDGER, ledger.head), (provenance.MODEL, weights_digest(run.model)))
    facts = dataclasses.replace(facts, provenance=(*made, *proof), budget=stated(run))
    if (audit := run.privacy_audit) is not None:
        marks = (CONTRADICTED, *facts.marks) if audit["contradicted"] else facts.marks
        facts = dataclasses.replace(facts, audit=on_card(audit), marks=marks)
    return facts


def _evaluations(run: RunDirectory) -> list[dict[str, Any]]:
    return [line["evaluation"] for line in run.metric_lines() if "evaluation" in line]


def results_of_run(run: RunDirectory, parts: Parts, ledger: Ledger, facts: CardFacts) -> dict[str, Any]:
    """Makes the content of results.json."""
    plan = parts.plan
    # An unsound method promises no epsilon: the accountant's figures are what the method claims.
    claim: dict[str, float] = {} if plan.bounding.method.sound else {"claimed_epsilon": facts.epsilon_spent}
    other = f"{'claimed_' if claim else ''}epsilon_{facts.other_accountant}"
    privacy = {
        "method": plan.bounding.method_name,
        "unit": plan.promise.unit,
        "per_unit": plan.sampling.per_unit,
        "epsilon": ledger.promised_epsilon,
        **claim,
        "delta": plan.promise.delta,
        "accountant": plan.promise.accountant,
        "guarantee": not is_void(privacy_card(facts)),
        **({other: facts.other_epsilon} if facts.other_accountant else {}),
        "noise_multiplier": plan.noise.multiplier,
        "sensitivity": plan.sensitivity,
        "sampling_rate": plan.sampling.rate,
        "steps_charged": ledger.charged,
        "records": plan.sampling.records,
        "batch": plan.sampling.batch,
        "group_size": None if plan.bounding.method.whole_batch else plan.bounding.group_size,
        "groups": plan.groups,
        "divisor": plan.divisor,
        "clip_norm": plan.bounding.bound,
        "clipping": plan.bounding.clipping,
        "progress": plan.as_dict()["progress"],
        "noise_std": plan.noise_std,
        "trained_parameters": trained_of(parts.model, parts.config).trainable,
        "noise": plan.noise.kind,
        "sound": plan.bounding.method.sound,
        "max_batch": plan.bounding.max_batch,
        "options": _public_numbers(parts),
    }
    privacy = {name: None if value == math.inf else value for name, value in privacy.items()}  # JSON has no infinity
    versions = {"dpfed": __version__, "torch": torch.__version__}
    made = {"id": run.identity[:16], "ledger": ledger.head, **run.provenance}
    return {"name": parts.config.name, "privacy": privacy, "evaluations": _evaluations(run), "versions": versions, "run": made}


def card_facts(parts: Parts, ledger: Ledger, disclosed: Collection[str] = ()) -> CardFacts:
    """Collects the facts on the privacy card of a run that follow from its plan and its ledger.

    Args:
        parts: Parts of the run.
        ledger: Ledger of the run.
        disclosed: Disclosures about the records in addition to the model; see `dpfed.artifacts.provenance`.
    """
    plan, config = parts.plan, parts.config
    other = plan.other_accountant
    trained = trained_of(parts.model, config)
    protected = (_unit_name(parts) or "unit") if plan.promise.unit == "user" else "record"
    captioned = _WITH_CAPTIONS if plan.bounding.method.closed_form else _CAPTIONED
    unit = captioned if config.model.reads_text else _IMAGE
    if parts.learner.views.label is not None:
        unit += " with its class, which the loss reads under the same noise"
    sampler = plan.mechanism.sampler.describe(protected)
    grouping = f"every drawn {protected} chooses one of the K groups independently"
    if plan.bounding.method.whole_batch:
        grouping = f"all drawn {protected}s make one batch"
        grouping += "" if plan.bounding.max_batch is None else f"; at most {plan.bounding.max_batch:,} are kept"
    if plan.bounding.method.closed_form:
        grouping = f"none: each {protected} adds its own part to the sum of each step"
    if plan.bounding.method.public_records:
        public = plan.bounding.options["public_records"]
        grouping = f"every drawn {protected} forms its own group, together with M = {public} public records"
    if plan.promise.unit == "user":
        where = " at one site" if parts.terms else ""
        unit = f"one {protected}: all records{where} that share a value of '{protected}' (a record that names none is "
        unit += "its own unit)"
        sampler += f"; at most {plan.sampling.per_unit} records of a drawn {protected} take part"
    return CardFacts(
        name=config.name,
        plan=plan,
        unit=unit,
        protected=protected,
        trained=str(trained),
        epsilon_spent=ledger.epsilon,
        other_accountant=other or "",
        other_epsilon=None if other is None else plan.epsilon(ledger.charged, other),
        steps_charged=ledger.charged,
        sampler=sampler,
        grouping=grouping,
        trust_mode=_ONE_PROCESS if ledger.world_size == 1 else _ONE_CLUSTER.format(ledger.world_size),
        outputs=_outputs(plan),
        marks=_marks(parts, ledger, disclosed),
        not_protected=_not_protected(parts, trained, disclosed),
        secrets=_secrets(parts, ledger, disclosed),
        options=", ".join(f"{name} = {value}" for name, value in _public_numbers(parts).items()),
        noise=plan.noise_of().said,
    )


def _public_numbers(parts: Parts) -> dict[str, Any]:
    """Returns the public numbers of the method; for private moments also the dimensions, layers and basis of the heads."""
    heads = getattr(parts.model, ATTRIBUTE, None)
    chosen = {"dimensions": heads.layout.dimensions} if isinstance(heads, MomentHeads) else {}
    options = parts.config.bounding.options
    basis = {"basis": options["basis"], "basis_fingerprint": digest} if (digest := options.get("basis_digest")) else {}
    layers = {f"{side}_layers": count for side, count in layers_of(parts.model).items()} if heads is not None else {}
    return parts.plan.bounding.options | chosen | layers | basis


def _outputs(plan: PrivacyPlan) -> tuple[str, ...]:
    """Describes the outputs that leave the trust boundary, for the card."""
    if not plan.has_guarantee:
        return (_NOTHING_COVERED if plan.private else _ALL_EXACT,)
    return _COVERED if plan.statistics is None else (_COVERED[0], _PROGRESS.format(plan.statistics.phase), *_COVERED[1:])


def _marks(parts: Parts, ledger: Ledger, disclosed: Collection[str]) -> tuple[Mark, ...]:
    store = parts.store
    if not parts.plan.private:
        return (NOT_PRIVATE,)
    method = parts.plan.bounding.method
    marks = [UNSOUND] * (not method.sound)
    if method.name in FOREIGN_METHODS:
        marks = [foreign_method(FOREIGN_METHODS[method.name].said)]
    marks += [FIXED_SEED] * ledger.marks.get("fixed_seed", False)
    planned = not store.public and uses_labelled_bank(parts.evaluator.tasks)
    marks += [LABELLED_BANK] * (planned or LABELLED_FIGURES in disclosed)
    if (name := _unit_name(parts)) is not None and parts.plan.promise.unit == "record":
        marks.append(shared_unit(name))
    return tuple(marks)


def _unit_name(parts: Parts) -> str | None:
    """Returns the name that the training records (in a federation, the sites' records) give to a unit, or ``None``."""
    return parts.terms.unit_name if parts.terms else parts.store.unit_name


def _not_protected(parts: Parts, trained: Trained, disclosed: Collection[str]) -> tuple[str, ...]:
    if not parts.plan.has_guarantee:
        return ("All records.",)
    starting: tuple[str, ...] = () if trained.start == "random" else (STARTING_WEIGHTS,)
    starting += (PUBLIC_RECORDS,) * parts.plan.bounding.method.public_records
    starting += (BASIS_RECORDS,) * parts.config.has_public_basis
    discrete = parts.plan.noise.kind == "discrete"
    always = (ASSUMED_OF_BITS if discrete and said is LAST_BITS else said for said in NOT_PROTECTED)
    shared = (SHARED_PASSES,) if parts.config.bounding.engine == "layerwise" else ()
    name = parts.config.objective.name
    starting += (foreign_loss(FOREIGN[name].said),) if name in FOREIGN else ()
    starting += tuple(filter(None, (own_part(key, said) for key, said in parts.own.items())))
    return (*starting, *always, *shared, *([AUDITS] if AUDITED in disclosed else []))


def _secrets(parts: Parts, ledger: Ledger, disclosed: Collection[str]) -> tuple[str, ...]:
    """Lists the secrets on which the guarantee depends, and who holds each of them."""
    secrets = [_RECORDS_OF_SITES if parts.terms else DECLARED_PUBLIC if parts.store.public else _RECORDS]
    secrets.append(_KEY_OF_SERVER if parts.terms else _KEY)
    if parts.terms:
        secrets.append(_KEYS_OF_SITES)
    if parts.config.computes_features:
        secrets.append(_secret_features(parts))
    if AUDITED in disclosed:
        secrets.append("`audit/`: do not publish it with the run.")
    return tuple(secrets)


def _secret_features(parts: Parts) -> str:
    """Describes where features of the records are kept. Each site of a federation chooses; the text states the default."""
    if parts.terms:
        return _KEPT_FEATURES.format("each site's")
    if isinstance(parts.store, RecordStore) and parts.config.data.keep_features:
        return _KEPT_FEATURES.format("the")
    return _FEATURES
