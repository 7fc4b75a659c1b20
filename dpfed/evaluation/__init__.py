"""Evaluation of a model on held-out records: k-NN, linear probe, retrieval, zero-shot.

All figures are exact, without noise. Evaluation must therefore read only held-out records, and labels that are public or whose
use was consented to; the privacy card states this.
"""
