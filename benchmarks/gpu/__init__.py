"""All benchmarks that need a GPU, as commands for a machine that is borrowed for minutes.

    python -m benchmarks.gpu pack --data ../shared/data/cifar10      here: writes wheels, records and commit into .gpu/
    python -m benchmarks.gpu                                         there, with .gpu/ copied along: everything but the table
    python -m benchmarks.gpu table                                   there: CIFAR-10 runs of the DP-GCL paper's Table 1
    python -m benchmarks.gpu fetch FOLDER                            here: copies results to benchmarks/results

"There" is the borrowed machine, which needs Python 3.12, torch 2.11, torchvision, numpy and pillow. A call (one command there)
carries 64 MiB. `--tiny` works anywhere.
"""
