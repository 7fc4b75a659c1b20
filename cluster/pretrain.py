"""`python -m cluster.pretrain CONFIG`: `dpfed pretrain CONFIG --cluster ...`, for `ray job submit` and torchrun to call."""

from __future__ import annotations

import os
import sys

from dpfed.cli import main

if __name__ == "__main__":
    sys.argv = ["dpfed", "pretrain", "--cluster", "torchrun" if "RANK" in os.environ else "ray", *sys.argv[1:]]
    main()
