"""From an array of a prepared data set to the long table that `moca train --data` reads.

`python hasc_to_csv.py hasc.npz hasc.csv`; HASC 2011 is a walking person's accelerometer.
"""

import csv
import sys

import numpy as np

x = np.load(sys.argv[1], allow_pickle=False)["x"]  # (observations, 3)
with open(sys.argv[2], "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["stream", "time", "y1", "y2", "y3"])
    for t, row in enumerate(x.tolist()):
        rows.writerow(["person", t, *row])
