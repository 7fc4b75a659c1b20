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
from dpfed.errors import UserError

_SIDE = 64  # pixels, for encoders without a fixed image size
_FEWEST_SECURE = 3  # sites: of two, each could subtract its own sum from the total


def plan_federation(request: Request, counts: Sequence[int], captions: bool) -> Chosen:
    """The plan of a federation.

    Args:
        request: its ``data`` is the coordinator's own record store, for evaluation; an empty string: there is none.
        counts: training records of each site.
        captions: whether the records have captions.

    Raises:
        UserError: for fewer than two sites, a site without records, or fewer than 100 records in all.
    """
    if len(counts) < 2 or min(counts) < 1:
        raise UserError(
            f"--records {','.join(map(str, counts))}: expected the numbers of training records of two sites or more, such as "
            "3000,1200,800. [federation-plan-sites]"
        )
    records, given = sum(counts), request.given()
    if records < FEWEST:
        raise UserError(
            f"{records} records in all are too few: with fewer than {FEWEST}, no method learns anything. [federation-plan-few]"
        )
    own = str(request.data)
    survey = Survey(Path(own).absolute(), "store", "image-text" if captions else "image", records, frozenset(), {}, None, _SIDE)
    towers = given_towers(request.model, captions, given) if request.model else small_towers(captions, "cpu", records)
    public = None if request.public is None else Path(request.public).absolute()
    split = "validation" if own else "none"
    situation = Situation(survey, float(request.epsilon), towers, "cpu", public, given, records, split)
    choices = [_trust(len(counts)), *_data(own, towers.sized), *after_import(situation)]
    config = configured(choices, given, "federation")
    plan = plan_of(records, config)
    heading = f"a federation of {len(counts)} sites; {records:,} records to train on"
    said = expected(config, plan, max(1, records // 6), towers.pretrained)
    return Chosen(config, tuple(choices), plan, None, said, heading)


def _trust(sites: int) -> Choice:
    if sites >= _FEWEST_SECURE:
        why = "the coordinator sees only the noisy total; write this line into the project file"
        return Choice("trust", 'trust = "secure"', why, {})
    why = "masks hide nothing between two sites: each could compute the other's sum; write this line into the project file"
    return Choice("trust", 'trust = "distributed"', why, {})


def _data(own: str, sized: bool) -> list[Choice]:
    keys: dict[str, Any] = {"data.source": "store"}
    if own:
        keys["data.path"] = own
    what = Choice(
        "data",
        f"the coordinator's own store {own}" if own else "none",
        "for evaluation; the sites' records are never used for it",
        keys,
    )
    if sized:
        return [what]
    why = "each site resizes its own images; --set data.size=SIDE sets another"
    return [what, Choice("images", f"{_SIDE} pixels", why, {"data.size": _SIDE})]
