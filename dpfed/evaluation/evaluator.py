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
    """Measures models on the same records, by the same tasks.

    Attributes:
        store: the records; labels of the training split are read for k-NN and the linear probe.
        embedder: Makes the embedder of a model.
        options: choose split and sizes.
        tasks: that are measured (`dpfed.evaluation.tasks.tasks_of`); none: nothing is.
    """

    store: RecordSet
    embedder: EmbedderOf
    options: EvaluationConfig
    tasks: tuple[str, ...]

    def __call__(self, model: nn.Module, which: Which, step: int) -> list[Evaluation]:
        """Measures a model as it is now.

        Args:
            model: with ``features``, and for retrieval and zero-shot ``embed_images`` and ``embed_text``.
            which: is this the trained or the untrained model.
            step: training steps that the model has seen.

        Raises:
            UserError: if no record that is chosen has a caption or a label.
        """
        return evaluate(self.embedder(model), self.store, self.options, self.tasks, which, step)
