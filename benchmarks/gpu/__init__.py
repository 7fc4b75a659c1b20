"""Everything that wants a GPU, for a machine that is borrowed for minutes: one command, and another for a cell of a table.

    python -m benchmarks.gpu pack --data ../shared/data/cifar10      here: wheels, records and commit, into .gpu/
    python -m benchmarks.gpu                                         there, with .gpu/ carried along: all that matters
    python -m benchmarks.gpu table                                   there: Table 1's CIFAR-10 cell, DP-GCL at epsilon 10
    python -m benchmarks.gpu fetch FOLDER                            here: results to benchmarks/results

A call carries 64 MiB. The machine needs Python 3.12, torch 2.11, torchvision, numpy and pillow. `--tiny` works anywhere.
"""
