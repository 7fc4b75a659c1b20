"""How decoding scales: JPEG files of 224 px, decoded by one process and by two, in turns.

OMP_NUM_THREADS=1 python -m benchmarks.decoding          writes benchmarks/results/decoding.json
"""

from __future__ import annotations

import os
import statistics

from benchmarks.record import write_result
from benchmarks.throughput import decoded_images

SIDE, ROUNDS = 224, 7


def main() -> None:
    """Measures, prints and writes the result."""
    busy = os.getloadavg()[0]
    pairs = [(decoded_images(SIDE, 1), decoded_images(SIDE, 2)) for _ in range(ROUNDS)]
    shares = [two / one / 2 for one, two in pairs]
    low, middle, high = statistics.quantiles(shares)
    alone, together = (round(statistics.median(rates)) for rates in zip(*pairs, strict=True))
    figures = {
        "side": SIDE,
        "images_per_second": {"one process": alone, "two processes": together},
        "share_of_linear_quartiles": [round(low, 2), round(middle, 2), round(high, 2)],
        "load_before": round(busy, 1),
    }
    print(f"{alone:,} and {together:,} images a second: {middle:.2f} of linear ({low:.2f} to {high:.2f})")
    print(write_result("decoding", figures, seeds=[0]))


if __name__ == "__main__":
    main()
