"""A secret search: some runs, of which only the best one is published, counted by private selection.

Before anything is trained, the number of runs is drawn from a public distribution, and for each run its settings, uniformly
from a list. Nobody learns that number. The best run by a held-out figure is published, and all others leave no trace. Its
epsilon is then far below that of as many runs that are shown (`dpfed.privacy.selection`; docs/guarantee.md has the proof).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path

from dpfed.budgets.claims import Claim
from dpfed.config import Config
from dpfed.config.dotted_keys import leaves
from dpfed.config.effects import refuse_without_effect
from dpfed.data.sampling import protected_count
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError, nearest
from dpfed.evaluation.suite import figures_of
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.selection import Distribution, Selection, checked_mean, drawn_setting
from dpfed.progress import Silent, Watcher
from dpfed.report.results import is_fraction
from dpfed.runs.budgeting import claim_of, foresee_search, hold_search, reserved_in, settle_search
from dpfed.runs.directory import RunDirectory
from dpfed.runs.disclosures import uses_labelled_bank
from dpfed.runs.foresight import foresee
from dpfed.runs.job import begin, take_up
from dpfed.runs.making import make_start_if_wanted
from dpfed.runs.provenance import environment, today
from dpfed.runs.records import records_of
from dpfed.runs.resolution import settle
from dpfed.runs.running import run_job
from dpfed.runs.search_folder import SearchFolder, State
from dpfed.runs.searched import Searched
from dpfed.runs.starts import refuse_start
from dpfed.runs.sweep import Sweep, read_sweep
from dpfed.runs.view import results_in

BEST = "best"  # the folder of what is published
_ID = 16  # letters
_SAME = ("data", "evaluation")  # sections that all settings share


def search(
    base: Config,
    file: str | Path,
    folder: str | Path,
    score: str,
    mean: float = 10.0,
    distribution: Distribution = "geometric",
    watcher: Watcher | None = None,
) -> RunDirectory | None:
    """Searches the settings of a sweep file, and publishes the best run as ``folder/SWEEP/best``, and nothing else.

    A search that was interrupted goes on, and one that is finished is returned as it is.

    Args:
        base: what all runs have in common.
        file: see `dpfed.runs.sweep.sweep`.
        folder: holds the sweeps' folders.
        score: the held-out figure that chooses, such as ``image_to_text_R@10``.
        mean: of the number of runs.
        distribution: of the number of runs.
        watcher: sees what is public: nothing of any run.

    Returns:
        The published run; ``None``: the number of runs that was drawn is zero, which ``poisson`` can give.

    Raises:
        UserError: before anything is trained, for settings that one bound cannot cover, a figure that is not measured, a
            lifetime budget without room, a folder that holds something else, or where showing as many runs costs less.
    """
    watcher, mean = watcher or Silent(), checked_mean(distribution, mean)
    asked = read_sweep(file, base)
    place = Path(folder) / asked.name
    _refuse(asked, file)
    store, searched = _planned(asked, score, mean, distribution, watcher)
    published = place / BEST
    if not RunDirectory.unused(published):
        return _published(published, searched)
    kept = SearchFolder.find(place)
    if kept is None:
        RunDirectory.refuse_unusable(published)
        _tell(searched, len(asked.configs), watcher)
        randomness = Randomness.fresh()
        searched = _named(searched, randomness)
        claim = claim_of(searched, asked.name, published.resolve(), (), begun=False)
        foresee_search(store, claim, list(asked.configs.values()))
        kept = SearchFolder.create(place, searched, randomness)
    elif not kept.searched.is_asked_for(searched):
        raise UserError(f"{place} holds another search, which is not finished: choose another folder for this one.")
    for config in asked.configs.values():
        make_start_if_wanted(config, watcher, lambda _: None)  # all that may refuse the search has been asked
    with kept.locked():
        return _carried_out(kept, asked, store, published, watcher)


def _carried_out(
    kept: SearchFolder, asked: Sweep, store: RecordStore, published: Path, watcher: Watcher
) -> RunDirectory | None:
    """Makes the runs that are left, and publishes the best one. The watcher is told nothing that depends on their number."""
    configs = list(asked.configs.values())

    def claim() -> Claim:
        return claim_of(kept.searched, asked.name, published.resolve(), reserved_in(kept.budget), kept.begun)

    hold_search(store, claim(), configs, kept.budget, watcher)
    kept.note(kept.state)
    watcher.note("searching: nothing is shown until the best run is known, for it would tell how many there are")
    number = kept.searched.selection.draw(kept.randomness)
    while (state := kept.state).done < number:
        kept.tidy()
        run = _trained(kept, state.done, configs)
        best = state.done
        if state.best is not None and _score(run, kept) <= _score(RunDirectory(kept.run(state.best)), kept):
            best = state.best
        kept.note(State(state.done + 1, best))
    settle_search(store, claim())
    if state.best is not None:
        kept.publish(state.best, published.resolve())
    SearchFolder.remove(published.parent)
    return None if state.best is None else RunDirectory.open(published)


def _trained(kept: SearchFolder, number: int, configs: list[Config]) -> RunDirectory:
    """A finished run of the search, whatever there is of it already."""
    folder, watcher = kept.run(number), Silent()
    config = configs[drawn_setting(kept.randomness, number, len(configs))]
    if RunDirectory.unused(folder):
        texts = {RunDirectory.SEARCH: kept.searched.text}
        if kept.budget.is_file():
            texts[RunDirectory.BUDGET] = kept.budget.read_text(encoding="utf-8")
        own = Randomness(kept.randomness.key("run", number))
        job = begin(config, folder, watcher, randomness=own, files=texts)
    else:
        run = RunDirectory.open(folder)
        if run.finished:
            return run
        job = take_up(run, watcher)
    job.run.date(kept.searched.began, kept.searched.environment)
    with job.run.locked():
        return run_job(job, watcher)


def _score(run: RunDirectory, kept: SearchFolder) -> float:
    """What chooses: more is better."""
    name, split = kept.searched.score, kept.searched.split
    found = [
        item
        for item in results_in(run.results)["evaluations"]
        if (item["name"], item["split"]) == (name, split) and item["model"] == "trained"
    ]
    if not found:
        return -math.inf
    value = float(max(found, key=lambda item: item["step"])["value"])
    return value if is_fraction(name) else -value


def _planned(
    asked: Sweep, score: str, mean: float, distribution: Distribution, watcher: Watcher
) -> tuple[RecordStore, Searched]:
    """The records and what is public of the search; its id is still to come."""
    watcher.note(f"accounting for a search of {len(asked.configs)} settings")
    plans, hashes, store = [], {}, None
    for name, config in asked.configs.items():
        settled = settle(config)
        store = records_of(settled)
        plans.append(PrivacyPlan.from_config(protected_count(store, config.privacy), settled))
        _refuse_score(score, name, store, settled)
        hashes[name] = hashlib.sha256(config.dump().encode()).hexdigest()[:_ID]
    assert store is not None
    selection = Selection(distribution, mean, tuple(plans))
    split = next(iter(asked.configs.values())).evaluation.split
    return store, Searched("", score, split, hashes, selection, today(), environment())


def _named(searched: Searched, randomness: Randomness) -> Searched:
    return dataclasses.replace(searched, id=randomness.key("id of the search").hex()[:_ID])


def _tell(searched: Searched, settings: int, watcher: Watcher) -> None:
    """Says what the search will cost and what as many shown runs would, and refuses it where these cost less.

    Raises:
        UserError: with both numbers.
    """
    selection = searched.selection
    one, best, shown = (round_up(value) for value in (selection.epsilon_of_one, selection.epsilon, selection.epsilon_of_all))
    delta = round_up(selection.plan.delta)
    if selection.epsilon_of_all <= selection.epsilon:
        raise UserError(
            f"to publish the best of {selection.mean:g} runs on average would cost epsilon {best}, and {selection.as_many} "
            f"such runs cost {shown} together even if all are shown (delta {delta}): show them all, or raise the mean "
            "number of runs.",
            command="On the command line: leave --publish out, or give a larger --mean.",
        )
    least, most = selection.number(0.05), selection.number(0.95)
    chance = next(chance for _, chance in selection.chances())
    few = "no run at all, and nothing to publish" if selection.distribution == "poisson" else "only one run"
    watcher.note(
        f"the number of runs is secret, {selection.distribution} with mean {selection.mean:g}: {least} to {most} in nine "
        f"searches of ten, {few} in {100 * chance:.2g} % of them; each run has one of {settings} settings by chance"
    )
    watcher.note(f"one such run alone: epsilon {one}; {selection.as_many} of them, all shown: epsilon {shown}")
    watcher.note(
        f"this search: epsilon {best}, delta {delta} (RDP, private selection); its best run by {searched.score} on "
        f"{searched.split} records is published, and nothing else"
    )
    watcher.note(f"these {searched.split} records choose, so they are not protected at all")


def _published(folder: Path, searched: Searched) -> RunDirectory:
    """The run that the search has published before.

    Raises:
        UserError: if something else is there.
    """
    run = RunDirectory.open(folder)
    own = run.searched
    if own is None or not own.is_asked_for(searched):
        raise UserError(f"{folder} holds another run, or the best of another search: choose another folder for this search.")
    SearchFolder.remove(folder.parent)  # a crash may have come in between
    return run


def _refuse(asked: Sweep, file: str | Path) -> None:
    """Refuses settings that cannot be searched, as far as it is known before records are opened.

    Raises:
        UserError: saying what to change.
    """
    if len(asked.configs) < 2:
        raise UserError(f"{file} has one run, and a search needs at least two settings to choose from: add a [[run]] table.")
    shared: dict[str, set[str]] = {section: set() for section in _SAME}
    for name, config in asked.configs.items():
        where = f"{file}, run '{name}'"
        if config.privacy.seed is not None:
            raise UserError(f"{where}: privacy.seed is fixed, so anybody can compute how many runs a search has: leave it out.")
        if config.diagnostics == "raw":
            raise UserError(
                f"{where}: diagnostics = 'raw' writes exact figures of records, which a search cannot count: leave it out."
            )
        if config.evaluation.split == "none":
            raise UserError(f"{where}: evaluation.split = 'none' measures nothing, and a search needs a figure that chooses.")
        refuse_without_effect(config)
        _refuse_unpromised(config, where)
        foresee(config)
        refuse_start(config)
        for section, found in shared.items():
            found.add(json.dumps(leaves(getattr(config, section).model_dump(mode="json")), sort_keys=True))
    for section, found in shared.items():
        if len(found) > 1:
            raise UserError(
                f"{file} changes keys of [{section}]: the runs of a search have the same records and the same measure, or "
                "their figures could not be compared. Leave these keys out."
            )


def _refuse_unpromised(config: Config, where: str) -> None:
    plan = PrivacyPlan.sketch(config)
    if not plan.private:
        raise UserError(f"{where}: a run without privacy has no epsilon, and so has no search: set bounding.method = 'group'.")
    if not plan.method.sound:
        raise UserError(
            f"{where}: the claim of bounding.method = '{plan.method_name}' does not hold, so no search of it can be counted: "
            "choose another method."
        )


def _refuse_score(score: str, name: str, store: RecordStore, config: Config) -> None:
    """Refuses a figure that is not measured, or that training labels have a part in.

    Raises:
        UserError: with the figures that there are.
    """
    measured = figures_of(store, config)
    if score not in measured:
        raise UserError(f"run '{name}' measures no figure '{score}' that could choose; {nearest(score, measured)}")
    if not store.public and uses_labelled_bank(figures=[score]):
        raise UserError(
            f"'{score}' is an exact function of private training labels, and what chooses must not be: choose a figure of "
            f"held-out records alone, such as retrieval or zero-shot (measured: {', '.join(measured)})."
        )
