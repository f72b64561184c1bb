"""Compare `Detector` with river's drift detectors: `pip install river`, then run this file."""

import csv
import statistics
import time
from importlib import resources

import numpy as np
from river import drift

from model_core import Detectors

SERIES, LENGTH, REACH = 40, 1000, 200  # REACH: observations within which a change counts as found
REAL = {"nile": 28}  # the change that is known: 1899


def streams(shift, rng):
    """Standard normal series whose mean shifts once, and where."""
    y = rng.normal(size=(SERIES, LENGTH))
    starts = rng.integers(300, 700, SERIES)
    for row, start in zip(y, starts, strict=True):
        row[start:] += shift
    return y, starts


def by_river(make):
    """Alarms of one of river's detectors on each series."""

    def alarms(y):
        found = []
        for row in y:
            detector, times = make(), []
            for t, value in enumerate(row):
                detector.update(value)
                if detector.drift_detected:
                    times.append(t)
            found.append(times)
        return found

    return alarms


def by_moca(model):
    """Times at which a detector confirmed changes."""

    def alarms(y):
        detectors = Detectors(len(y), model)
        answers = [detectors.update_many(i, row) for i, row in enumerate(y)]
        return [[each.seq for each in row if each.drift_detected] for row in answers]

    return alarms


METHODS = {
    "Detector()": by_moca(None),
    'Detector("gaussian")': by_moca("gaussian"),
    "ADWIN": by_river(drift.ADWIN),
    "PageHinkley": by_river(drift.PageHinkley),
}


def score(alarms, starts):
    """Share of changes found, median delay, and false alarms per 1,000 observations."""
    delays, false, quiet = [], 0, 0
    for times, start in zip(alarms, starts, strict=True):
        within = [t - start for t in times if start <= t < start + REACH]
        delays += within[:1]
        false += len(times) - len(within[:1])
        quiet += LENGTH
    delay = statistics.median(delays) if delays else None
    return len(delays) / len(starts), delay, 1000 * false / quiet


def main():
    """Print a table of each shift, and the alarms on two real series."""
    for name, alarms in METHODS.items():
        rng, began, steps = np.random.default_rng(7), time.perf_counter(), 0
        for shift in (0.0, 0.5, 1.0, 2.0, 3.0):
            y, starts = streams(shift, rng)
            steps += y.size
            found, delay, false = score(alarms(y), starts)
            known = f"found {found:4.0%}, median delay {delay}" if shift else "no change"
            print(f"{name:22} shift {shift:3.1f}: {known}; {false:.2f} false alarms per 1,000")
        each = 1e6 * (time.perf_counter() - began) / steps
        print(f"{name:22} {each:.1f} microseconds an observation")
        for sample, start in REAL.items():
            text = (resources.files("service.samples") / f"{sample}.csv").read_text()
            y = np.array([[float(row["y"]) for row in csv.DictReader(text.splitlines())]])
            print(f"{name:22} {sample}, changed at {start}: alarms at {alarms(y)[0]}")


if __name__ == "__main__":
    main()
