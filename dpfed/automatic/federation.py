"""Chooses a federation's plan from the number of records at each site; the coordinator sees no record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfed.automatic.choosing import Chosen, configured
from dpfed.automatic.expectation import expected
from dpfed.automatic.request import Request
from dpfed.automatic.rules import Choice, Situation, after_import, small_towers
from dpfed.automatic.survey import FEWEST, Survey
from dpfed.automatic.towers import given_towers
from dpfed.building.plan import plan_of
from dpfed.data.store.layout import read_layout
from dpfed.errors import UserError
from dpfed.paths import local_path

_SIDE = 64  # pixels, for encoders without a fixed image size
_FEWEST_SECURE = 3  # sites; with two, each could subtract its own sum from the total


def plan_federation(request: Request, counts: Sequence[int], captions: bool) -> Chosen:
    """Chooses the plan of a federation.

    Args:
        request: Request of the coordinator. The request's ``data`` is the path of the coordinator's own record store, for
            evaluation; if it is empty, the coordinator has no store.
        counts: Number of training records at each site.
        captions: Whether the records have captions.

    Raises:
        UserError: If there are fewer than two sites, a site without records, or fewer than 100 records in all; if a given store
            does not exist or is damaged; if the coordinator's store holds another kind of records; if the store of public
            records is not marked public; if the model is unknown; or if a setting of the request is wrong or has no effect.
    """
    if len(counts) < 2 or min(counts) < 1:
        raise UserError(
            f"--records {','.join(map(str, counts))}: expected the numbers of training records of two sites or more, such as "
            "3000,1200,800. [federation-plan-sites]"
        )
    records, given = sum(counts), request.given()
    if records < FEWEST:
        raise UserError(
            f"{records} records in all are too few: with fewer than {FEWEST}, no method learns anything. Add sites "
            "or records. [federation-plan-few]"
        )
    kind, store = "image-text" if captions else "image", str(request.data)
    labels, split = _own(local_path(store, "data"), kind) if store else ({}, "none")
    survey = Survey(Path(store).absolute(), "store", kind, records, frozenset(), labels, None, _SIDE)
    towers = given_towers(request.model, captions, given) if request.model else small_towers(captions, "cpu", records)
    public = None if request.public is None else local_path(request.public, "public")
    if public is not None and not read_layout(public).header["public"]:
        raise UserError(
            f"--public {request.public}: its records are not marked public, but they would join every group: give a store "
            "that was imported with `dpfed data import --public`. [federation-plan-public]"
        )
    situation = Situation(survey, float(request.epsilon), towers, "cpu", public, given, records, split)
    choices = [_trust(len(counts)), *_data(store, towers.sized), *after_import(situation)]
    config = configured(choices, given, "federation")
    plan = plan_of(records, config)
    heading = f"a federation of {len(counts)} sites; {records:,} records to train on"
    said = expected(config, plan, max(1, records // 6), towers.pretrained)
    return Chosen(config, tuple(choices), plan, None, said, heading)


def _own(path: Path, kind: str) -> tuple[dict[str, list[str]], str]:
    """Returns the names of labels and classes of the coordinator's own store, and the evaluation split. It reads no record.

    Args:
        path: Path of the store.
        kind: Kind of the sites' records: ``"image"`` or ``"image-text"``.

    Raises:
        UserError: If `path` is not a record store, or its records are of another kind.
    """
    layout = read_layout(path)
    if layout.header["kind"] != kind:
        mend = "leave --captions out" if kind == "image-text" else "add --captions"
        raise UserError(
            f"--data {path} holds {layout.header['kind']} records, but the sites have {kind} records: {mend}, or give "
            "another store. [federation-plan-kind]"
        )
    split = next((split for split in ("validation", "test") if layout.splits[split]), "none")
    return layout.header["label_names"], split


def _trust(sites: int) -> Choice:
    if sites >= _FEWEST_SECURE:
        why = "the coordinator sees only the noisy total; write this line into project.toml"
        return Choice("trust", 'trust = "secure"', why, {})
    why = "masks hide nothing from two sites: each could compute the other's sum; write this line into project.toml"
    return Choice("trust", 'trust = "distributed"', why, {})


def _data(store: str, sized: bool) -> list[Choice]:
    if store:
        keys: dict[str, Any] = {"data.source": "store", "data.path": store}
        what = Choice(
            "data", f"the coordinator's own store {store}", "for evaluation; the sites' records are never used for it", keys
        )
    else:
        keys = {"data.source": "shapes", "data.records": FEWEST}
        what = Choice("data", "a few generated shapes", "the coordinator has no records, so it evaluates nothing", keys)
    if sized:
        return [what]
    why = "each site resizes its own images; --set data.size=SIDE sets another size"
    return [what, Choice("images", f"{_SIDE} pixels", why, {"data.size": _SIDE})]
