"""Pretraining with many workers of one organisation, which run one privacy mechanism together.

The workers divide the groups of each step among themselves. Where each record makes a group, or features of views are cached,
they divide the records.

This package has only the code that a cluster adds: the transport between processes, the launchers, and the commands
`dpfed cluster cost` and `dpfed cluster status`. The training step is the one in `dpfed.training`.
"""
