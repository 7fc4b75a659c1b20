"""Losses of one group of records, for `dpfed.Trainer` and for loops of your own."""

from dpfed.losses.loss import BarlowTwins, InfoNCE, Loss, SigLIP

__all__ = ["BarlowTwins", "InfoNCE", "Loss", "SigLIP"]
