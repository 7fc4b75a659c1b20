"""Pretraining with many workers of one organisation: one mechanism, and each worker has its part of the records.

This package has only the code that a cluster adds: the transport between processes, the launchers, and the estimate of costs.
The training step is the one in `dpfed.training`.
"""
