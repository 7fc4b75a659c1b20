"""The ServerApp in the bundle that `flwr run .` makes. The bundle only imports dpfed: install dpfed on the SuperLink's host."""

from dpfed.federation.flower.server_app import app

__all__ = ["app"]  # where Flower looks for it
