"""From the arrays of a prepared data set to the long table that `moca train --data` reads.

`python npz_to_csv.py hasc.npz hasc.csv`: an array `x`, or each array `NAME__x`, of shape
(observations, columns) becomes the stream `NAME` of labels `y1`, `y2`, ...
"""

import csv
import sys

import numpy as np

source, target = sys.argv[1:]
arrays = np.load(source, allow_pickle=False)
streams = {name.removesuffix("x").strip("_") or "one": arrays[name]
           for name in arrays if name == "x" or name.endswith("__x")}  # fmt: skip
with open(target, "w", newline="") as file:
    rows = csv.writer(file)
    width = next(iter(streams.values())).shape[1]
    rows.writerow(["stream", "time", *(f"y{k + 1}" for k in range(width))])
    for name, x in streams.items():
        rows.writerows([name, t, *row] for t, row in enumerate(x.tolist()))
