"""Evaluation of a model on held-out records: k-NN, linear probe, retrieval, zero-shot.

All figures are exact, without noise. The measured records must therefore be held out. k-NN and the linear probe also read
training records with their labels. These labels must be public, or their use must have been consented to; the privacy card says
when they are private.
"""
