"""The command `python -m cluster.plan`: see `cluster.cost`."""

from cluster.cost import main

if __name__ == "__main__":
    main()
