"""Compare `Detector` with river's drift detectors: needs river and the extra train; minutes."""

import statistics
import sys

import numpy as np
from river import drift

from model_core import Detectors
from training.quality.series import FAMILIES

COMPARED = ("normal", "Student-t3", "AR(0.5)")  # by default, else families of the command line
SEEDS = (1, 2, 3)
CHOICE = 4  # seed of the series that thresholds are chosen on
QUIET, LENGTH = 5, 2000  # series without a change, of each seed
SHIFTED, START, WITHIN = 10, 300, 100  # series with one, which has to be found within so many
EVERY = 32  # observations between looks of ADWIN: starts are of all places between
SHIFTS = (1.0, 2.0, 3.0)  # standard deviations
ASKED = 1e-4  # false alarms an observation: the default of `Detector`
RIVER = {  # the default, and the ends between which a threshold is chosen, the sensitive one first
    "KSWIN": (lambda alpha: drift.KSWIN(alpha=alpha, seed=0), 0.005, (0.1, 1e-16)),
    "PageHinkley": (lambda threshold: drift.PageHinkley(threshold=threshold), 50.0, (1.0, 1e5)),
    "ADWIN": (lambda delta: drift.ADWIN(delta=delta), 0.002, (0.5, 1e-30)),
}


def moca(y):
    """Times at which `Detector()` confirms a change."""
    answers = Detectors(1).update_many(0, y)
    return [answer.seq for answer in answers if answer.drift_detected]


def river(detector, y):
    """Times at which one of river's detectors alarms."""
    alarms = []
    for t, value in enumerate(y.tolist()):
        detector.update(value)
        if detector.drift_detected:
            alarms.append(t)
    return alarms


def rate(detect, family, seed, count=QUIET):
    """False alarms an observation."""
    rng = np.random.default_rng(seed)
    return sum(len(detect(family.draw(rng, LENGTH))) for _ in range(count)) / (count * LENGTH)


def chosen(make, ends, family, most):
    """The most sensitive of the thresholds, in eight halvings, with at most this rate."""
    low, high = np.log(ends)
    for _ in range(8):
        middle = (low + high) / 2
        found = rate(lambda y, at=middle: river(make(np.exp(at)), y), family, CHOICE, 2 * QUIET)
        low, high = (low, middle) if found <= most else (middle, high)
    return float(np.exp(high))


def delay(detect, family, shift, seed):
    """Observations from a shift to the first alarm, itself included; inf if it is not found."""
    rng = np.random.default_rng(seed)
    start = START + int(rng.integers(EVERY))
    y = family.shifted(rng, start + WITHIN, start, shift)
    return min((t - start + 1 for t in detect(y) if t >= start), default=np.inf)


for family in (each for each in FAMILIES if each.name in (sys.argv[1:] or COMPARED)):
    most = max(ASKED, rate(moca, family, CHOICE, 2 * QUIET))
    methods = {"Detector()": moca}
    for name, (make, default, ends) in RIVER.items():
        for at in (default, chosen(make, ends, family, most)):
            methods[f"{name} {at:.2g}"] = lambda y, make=make, at=at: river(make(at), y)
    for name, detect in methods.items():
        row = [family.name, name, f"{1000 * np.mean([rate(detect, family, s) for s in SEEDS]):.2f}"]
        for shift in SHIFTS:
            found = [delay(detect, family, shift, (s, i)) for s in SEEDS for i in range(SHIFTED)]
            row.append(f"{statistics.median(found):g} ({np.isfinite(found).mean():.0%})")
        print(" | ".join(row).replace("inf", "-"), flush=True)
