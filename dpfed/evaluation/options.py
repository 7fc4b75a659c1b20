"""What may be chosen about measurements: a section of a configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpfed.schema.section import Items, Section

Task = Literal["retrieval", "zero_shot", "knn", "linear"]


class EvaluationConfig(Section):
    """Measurements of the untrained and the trained model on held-out records."""

    tasks: Items[Task] = Field((), description="what is measured; empty: all that is possible")
    match: Literal["record", "unit"] = Field(
        "record", description="retrieval: a hit is the query's own record, or any record of its unit"
    )
    templates: Items[str] = Field(("a photo of a {}.",), min_length=1, description="zero-shot prompts, {} is the class")
    split: Literal["validation", "test", "none"] = Field("test", description="'none' trains without measuring")
    every: int = Field(0, ge=0, description="steps between evaluations during training; 0: at the end only")
    records: int = Field(0, ge=0, description="held-out records used; 0: all")
    bank: int = Field(0, ge=0, description="labelled training records for k-NN and linear probe; 0: all")
