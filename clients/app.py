"""The Flower app that `flwr run .` bundles; dpfed itself is installed wherever it runs."""

from dpfed.federation.flower.client_app import app

__all__ = ["app"]  # where Flower looks for it
