"""The ClientApp in the bundle that `flwr run .` makes. The bundle only imports dpfed: install dpfed at every site."""

from dpfed.federation.flower.client_app import app

__all__ = ["app"]  # where Flower looks for it
