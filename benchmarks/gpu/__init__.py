"""Everything that wants a GPU, for a machine that is borrowed for minutes: one command for each of four stages.

    python -m benchmarks.gpu pack --data ../shared/data/cifar10      here: wheels, records and commit, into .gpu/
    python -m benchmarks.gpu --minutes 9 --stage 1                   there, with .gpu/ carried along
    python -m benchmarks.gpu fetch FOLDER                            here: results to benchmarks/results, the rest to .gpu/

| stage | what it does | result files |
|---|---|---|
| 0 | takes what was carried, and says what is still missing | |
| 1 | CUDA against CPU: sums, noise, digests, resume, bf16, TF32; then speed and memory | gpu-checks, gpu-throughput, gpu-step, gpu-memory |
| 2 | CIFAR-10's cells of the DP-GCL paper's Table 1 at its own settings, for DP-GCL and DP-CLIP | gpu-table1 |
| 3 | the recipe of docs/reproduce.md, a procedural start, and adapters to captioned scenes | gpu-recipe |
| 4 | ViT-B-32 with adapters at 224 px: exactness, speed, memory | gpu-vit |

The machine needs Python 3.12 with torch, torchvision, numpy and pillow, and nothing else: `pack` fetches the wheels of all other
packages, in the versions of requirements.lock, and ``--there NAME ...`` leaves out what the machine has. A call carries 64 MiB
with the checkout; `pack` divides what is more into ``.gpu/load-1``, ``.gpu/load-2`` and so on, to be carried in one call each.

A stage ends by itself within ``--minutes``. The same command goes on: what is measured is not measured again, and training goes
on at its last checkpoint. All is kept in ``--work``, which outlives a call as long as the machine is held. Results, and the first
pieces of unfinished runs, also go to the folder that ``OUT`` names; ``--pieces N`` brings further pieces, and `fetch` and `pack`
carry them to another machine.

``--tiny`` tries a stage in seconds, on any machine: its figures mean nothing.
"""
