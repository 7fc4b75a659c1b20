"""The ``[evaluation]`` section of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpfed.schema.conditions import When, only
from dpfed.schema.section import Items, Section
from dpfed.schema.wording import either

Task = Literal["retrieval", "zero_shot", "knn", "linear"]
_MEASURED = only("evaluation.split", "validation", "test")


def _with(*tasks: Task) -> When:
    """Returns the condition that the configuration allows at least one of the given tasks."""

    def holds(config: EvaluationConfig) -> bool:
        return not config.tasks or not set(tasks).isdisjoint(config.tasks)

    return When("evaluation.tasks", holds, f"add {either(tasks)}")


class EvaluationConfig(Section):
    """Settings that say how the untrained and the trained model are measured on held-out records."""

    tasks: Annotated[Items[Task], _MEASURED] = Field((), description="what is measured; empty: all that is possible")
    match: Annotated[Literal["record", "unit"], _MEASURED, _with("retrieval")] = Field(
        "record", description="retrieval: a hit is the query's own record, or any record of its unit"
    )
    templates: Annotated[Items[str], _MEASURED, _with("zero_shot")] = Field(
        ("a photo of a {}.",), min_length=1, description="zero-shot prompts, {} is the class"
    )
    split: Literal["validation", "test", "none"] = Field(
        "test", description="split of the measured records; 'none': nothing is measured"
    )
    every: Annotated[int, _MEASURED] = Field(
        0, ge=0, description="number of steps between evaluations during training; 0: only before and after it"
    )
    records: Annotated[int, _MEASURED] = Field(0, ge=0, description="number of held-out records used; 0: all")
    bank: Annotated[int, _MEASURED, _with("knn", "linear")] = Field(
        0, ge=0, description="number of labelled training records for k-NN and linear probe; 0: all"
    )
