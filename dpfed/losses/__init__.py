"""Contains losses of one group of records, for `dpfed.Trainer` and for your own training loops."""

from dpfed.losses.dcl import DCL
from dpfed.losses.loss import BarlowTwins, InfoNCE, Loss, SigLIP, SupCon
from dpfed.losses.pairs import PairLoss
from dpfed.losses.prediction import Prediction, PredictionHead
from dpfed.losses.vicreg import VICReg

__all__ = ["DCL", "BarlowTwins", "InfoNCE", "Loss", "PairLoss", "Prediction", "PredictionHead", "SigLIP", "SupCon", "VICReg"]
