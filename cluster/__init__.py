"""Sharded pretraining: many workers of one organisation, one mechanism.

Only what a cluster adds lives here: the transport between processes, the launcher, the deployment files. The training step is
the one in `dpfed.training`.
"""
