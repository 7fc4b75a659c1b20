"""`python -m dpfed` is the `dpfed` command."""

from dpfed.cli import main

main()
