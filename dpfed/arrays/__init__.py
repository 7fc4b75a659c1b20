"""Private moments of arrays: `dpfed.PrivateCCA`, with the interface of a scikit-learn estimator."""
