"""What may look on while a model trains: `Callback`, and the summary of a step that it sees."""

from dpfed.callbacks.callback import Callback, StepSummary

__all__ = ["Callback", "StepSummary"]
