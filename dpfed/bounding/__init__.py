"""Bounds on one record's influence on a step: methods, engines, layer rules and kernels."""
