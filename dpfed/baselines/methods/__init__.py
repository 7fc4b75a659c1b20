"""Bounding methods for comparison. Each file defines a `METHOD`, as each file of `dpfed.bounding.methods` does."""
