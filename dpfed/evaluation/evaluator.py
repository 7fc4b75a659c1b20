"""Measures a model on the held-out records of a store."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dpfed.data.record_set import RecordSet
from dpfed.evaluation.features import EmbedderOf
from dpfed.evaluation.measured import Evaluation, Which
from dpfed.evaluation.options import EvaluationConfig
from dpfed.evaluation.suite import evaluate


@dataclass(frozen=True)
class Evaluator:
    """A fixed set of records and tasks on which models are measured.

    Attributes:
        store: Records; for k-NN and the linear probe, training records are read with their labels.
        embedder: Function from a model to its `Embedder`, which computes the model's features and embeddings.
        options: Options that choose the split and the numbers of records.
        tasks: Tasks to measure (`dpfed.evaluation.tasks.tasks_of`); empty: nothing is measured.
    """

    store: RecordSet
    embedder: EmbedderOf
    options: EvaluationConfig
    tasks: tuple[str, ...]

    def __call__(self, model: nn.Module, which: Which, step: int) -> list[Evaluation]:
        """Measures a model in its current state.

        Args:
            model: Model with ``features``, and for retrieval and zero-shot ``embed_images`` and ``embed_text``.
            which: Whether this is the trained or the untrained model.
            step: Number of training steps that the model has seen.

        Raises:
            UserError: If no record has a caption or label that a task needs, the model lacks a method that a task needs, or an
                image cannot be read.
            ValueError: If a task needs text, and the embedder has no tokenizer.
        """
        return evaluate(self.embedder(model), self.store, self.options, self.tasks, which, step)
