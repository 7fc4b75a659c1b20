"""Preparation of stored images and captions as views that a model sees."""
