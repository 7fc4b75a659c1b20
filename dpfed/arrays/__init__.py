"""Private moments of arrays: `dpfed.PrivateCCA`, as scikit-learn's estimators are."""
