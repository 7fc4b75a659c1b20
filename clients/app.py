"""The Flower app that `flwr run .` bundles; dpfed itself is installed wherever it runs."""

from dpfed.federation.flower.client_app import app as app
