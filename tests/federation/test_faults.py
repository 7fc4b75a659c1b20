"""Every fault, in every mode, with real processes over TLS: SuperLink, SuperNodes, site workers, server; some are killed."""

import pytest

from benchmarks.federation_faults import LATE, MODES, NODE_KILLED, OF_SITE, SERVER_KILLED, main
from dpfed.protocol.trust import Trust

SITE = "site-0"
SEEN_IN_SECURE = {"another shape", "replays an old answer", "slow", "killed in mid-step"}  # a masked sum shows no values


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_fault_leaves_noise_and_books_right(mode, tmp_path):
    steps = main((mode,), tmp_path)[mode]
    least = Trust(mode, 3, 1, 1).least
    for step in steps:
        run, *sites = step["charged"]
        assert run  # every step is paid for, whatever came of it
        if step["outcome"] == "collected":
            assert len(step["arrived"]) >= least
            spoilt = mode == "secure" and SITE in step["arrived"] and step["fault"] in OF_SITE.values()
            assert spoilt or step["noise"] >= 1 - step["tolerance"]
            assert all(sites[int(name[-1])] for name in step["arrived"])  # whoever's sum is used has paid
        if step["fault"] in OF_SITE.values() and (mode != "secure" or step["fault"] in SEEN_IN_SECURE):
            assert SITE not in (step["arrived"] or [])
    assert {step["fault"] for step in steps} >= set(OF_SITE.values())
    assert steps[SERVER_KILLED]["outcome"] == "discarded"
    assert "site-2" not in steps[LATE]["arrived"] and any("site-2" in (step["arrived"] or []) for step in steps)
    assert steps[NODE_KILLED]["outcome"] in ("collected", "discarded")
    slow = next(step["step"] for step in steps if step["fault"] == "slow")
    assert any(SITE in (step["arrived"] or []) for step in steps[slow:])  # it came back
