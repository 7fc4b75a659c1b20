"""What a model is worth, measured on held-out records: k-NN, linear probe, retrieval, zero-shot.

Everything here is exact, without noise. It must therefore only ever see held-out records and public or consented labels;
the privacy card says so.
"""
