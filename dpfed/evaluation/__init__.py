"""Evaluation of a model on held-out records: k-NN, linear probe, retrieval, zero-shot.

All figures are exact, without noise. Evaluation must therefore read only held-out records and public or consented labels;
the privacy card states this.
"""
