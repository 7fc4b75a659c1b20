"""What pyproject.toml cannot say: two folders of the repository are installed inside dpfed (dpfed/files/shipped.py)."""

from setuptools import find_packages, setup

SHIPPED = {"dpfed.configs": "configs", "dpfed.published": "benchmarks/published"}

setup(packages=[*find_packages(include=["dpfed", "dpfed.*"]), *SHIPPED], package_dir=SHIPPED)
