"""The ServerApp of the app that `flwr run .` bundles. The SuperLink's host has dpfed installed: the app only imports it."""

from dpfed.federation.flower.server_app import app

__all__ = ["app"]  # where Flower looks for it
