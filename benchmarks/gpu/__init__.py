"""Everything that wants a GPU, for a machine that is borrowed for minutes: one command for each of four stages.

    python -m benchmarks.gpu pack --data ../shared/data/cifar10      here: wheels, records and commit, into .gpu/
    python -m benchmarks.gpu --minutes 9 --stage 1                   there, with .gpu/ carried along
    python -m benchmarks.gpu fetch FOLDER                            here: results to benchmarks/results, the rest to .gpu/

docs/gpu.md says what the stages are, how much is carried, and how unfinished runs go on.
"""
