"""Public contrast among sites: their groups are those of one owner, and every site must have the public set agreed on."""

import pytest
import torch

from dpfed.data.generated.shapes import write_shapes
from dpfed.errors import UserError
from dpfed.federation.site.folder import SiteSettings
from dpfed.federation.site.serving import site_config
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.statement import statement
from dpfed.protocol.vectors import grid_of
from dpfed.runs.resolution import resolve_defaults
from tests.federation.lab import Lab


@pytest.fixture
def lab(tiny_public, tmp_path, public_store):
    tiny_public["public"]["digest"] = public_store.contents
    return Lab(tiny_public, tmp_path, trust="secure")


@pytest.mark.long
def test_the_sites_clean_sums_add_up_to_one_owners(lab):
    alone = lab.parts.learner.worker(Randomness.from_seed(5).for_ranks()).bounded_sum(0).values
    assert alone.any() and torch.equal(lab.clean(0).values, alone)


def test_the_terms_say_which_public_records_are_agreed_on(lab, public_store):
    said = f"3 of the set with fingerprint {public_store.contents} join every group"
    assert dict(statement(lab.terms))["public records"] == said


def test_terms_without_the_public_records_digest_are_refused(tiny_public, tmp_path):
    with pytest.raises(UserError, match="no fingerprint.*terms-contradiction"):
        Lab(tiny_public, tmp_path)


def test_the_secure_grid_has_room_for_more_groups_than_expected(lab):
    longest = (2 * lab.plan.sampling.batch + 100) * lab.plan.bounding.clip_norm
    assert lab.plan.longest_sum == longest and grid_of(lab.terms).spacing * 2**31 > longest


def test_a_site_uses_its_own_copy_and_no_other_set(lab, shapes, public_store, tmp_path):
    agreed = lab.terms.run_config().public
    assert agreed.path == public_store.path.name and agreed.digest == public_store.contents
    mine = SiteSettings(name="site-0", store=str(shapes.path), public=str(public_store.path))
    assert resolve_defaults(site_config(lab.terms, mine)).public.path == str(public_store.path)
    without = mine.model_copy(update={"public": None})
    with pytest.raises(UserError, match=r"`public` in its site.toml"):
        resolve_defaults(site_config(lab.terms, without))
    write_shapes(tmp_path / "other", train=60, validation=0, test=0, seed=10)
    other = mine.model_copy(update={"public": str(tmp_path / "other")})
    with pytest.raises(UserError, match="not those that were agreed on"):
        resolve_defaults(site_config(lab.terms, other))
