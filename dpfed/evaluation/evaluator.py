"""Measures a model on the held-out records of a store."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch import nn

from dpfed.data.record_set import RecordSet
from dpfed.data.views.record_views import RecordViews
from dpfed.evaluation.measured import Evaluation, Which
from dpfed.evaluation.options import EvaluationConfig
from dpfed.evaluation.suite import evaluate


@dataclass(frozen=True)
class Evaluator:
    """Measures models on the same records, by the same tasks.

    Attributes:
        store: the records; labels of the training split are read for k-NN and the linear probe.
        views: how records become what the model reads.
        options: choose split and sizes.
        tasks: that are measured (`dpfed.evaluation.tasks.tasks_of`); none: nothing is.
    """

    store: RecordSet
    views: RecordViews
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
        read, device = functools.partial(self.views.read, self.store), next(model.parameters()).device
        plain, tokenizer = self.views.images.plain, self.views.tokenizer
        return evaluate(model, self.store, read, self.options, self.tasks, plain, tokenizer, which, step, device)
