"""Bounds one record's influence on a training step, by methods, the engines that compute them, layer rules and kernels."""
