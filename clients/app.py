"""The ClientApp of the app that `flwr run .` bundles. Each site has dpfed itself installed: the app only imports it."""

from dpfed.federation.flower.client_app import app

__all__ = ["app"]  # where Flower looks for it
