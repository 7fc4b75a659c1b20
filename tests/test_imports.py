"""What importing costs: no transport is loaded before it is used, and the light commands stay light."""

import json
import subprocess
import sys

import pytest


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"
    return set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout))


def test_importing_dpfed_loads_neither_a_transport_nor_torch():
    assert not {"ray", "flwr", "torch"} & loaded_after("import dpfed")


@pytest.mark.long
def test_the_whole_job_loads_no_transport_and_no_classifier():
    heavy = {"ray", "flwr", "opacus", "open_clip", "sklearn", "torchvision", "sympy"}  # sympy: of torch's compiler
    assert not heavy & loaded_after("import dpfed.runs.pretraining, dpfed.cli, dpfed.encoder, dpfed.audit.membership")


def test_accounting_needs_no_torch():
    assert "torch" not in loaded_after("import dpfed.privacy.plan, dpfed.cli")


def test_every_public_name_is_there():
    import dpfed

    for name in dpfed.__all__:
        assert getattr(dpfed, name) is not None
    with pytest.raises(AttributeError):
        _ = dpfed.nothing_of_the_kind


def test_help_loads_no_library_for_numbers_or_progress_bars():
    assert not {"numpy", "pydantic", "rich"} & loaded_after("import dpfed.cli")


def test_opening_a_run_needs_no_charts():
    assert not {"matplotlib", "torch"} & loaded_after("import dpfed.artifacts.directory")


@pytest.mark.long
def test_watching_and_showing_a_run_needs_no_torch():
    assert "torch" not in loaded_after("import dpfed.live.app, dpfed.live.terminal, dpfed.artifacts.view, dpfed.report.html")
