"""Calibration charts of real labels and of classifiers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from training.figures.drawing import (
    CURRENT,
    METHODS,
    MOCA,
    QUIET,
    Chart,
    Floats,
    canvas,
    finished,
    row,
    styled,
)
from training.statistics import (
    BINS,
    Reliability,
    calibration_error,
    coverage,
    distance,
    uniform_band,
)

LEVELS = np.linspace(0.05, 0.95, 19)


@styled
def real(pits: Floats, title: str = "Calibration of the predictive", bins: int = BINS) -> Chart:
    """Histogram of PITs with the 95 % band of uniform ones, and coverage of central intervals.

    pits: nan where a label is missing.
    """
    pits = pits[~np.isnan(pits)]
    figure, (left, right) = row(8, 4.2, 2)
    unit = bins / len(pits)  # densities do not depend on the number of labels and bins
    heights, edges = np.histogram(pits, bins, (0, 1))
    low, high = uniform_band(len(pits), bins)
    colour = METHODS["COE"].colour
    width = 0.92 / bins
    left.bar((edges[1:] + edges[:-1]) / 2, heights * unit, width, color=colour, label="labels")
    left.axhspan(
        low * unit, high * unit, color=CURRENT, alpha=0.3, lw=0, label="95 % of uniform, each bin"
    )
    left.axhline(1, color=QUIET, ls="--", lw=1.2)
    top = 1.1 * max(heights.max(), high) * unit
    left.set(xlabel="PIT", ylabel="density", title="PIT histogram", xlim=(0, 1), ylim=(0, top))
    _diagonal(right)
    right.plot(LEVELS, coverage(pits, LEVELS), color=MOCA, marker="o", label="coverage")
    right.set(
        xlabel="level of the central interval",
        ylabel="share of labels inside",
        title="coverage",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    text = f"{len(pits)} PITs, {distance(pits):.3f} from uniform (Kolmogorov-Smirnov)."
    return finished(figure, title, text)


@styled
def classifier(reliability: Reliability, title: str = "Calibration of the classifier") -> Chart:
    """Accuracy against confidence, above the frequency of each confidence."""
    figure = canvas(5.6, 5.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(7, 3))
    count = reliability.count
    bins = len(count)
    error = calibration_error(reliability)
    full = count > 0
    _diagonal(above)
    above.plot(
        reliability.confidence[full],
        reliability.accuracy[full],
        color=MOCA,
        marker="o",
        label="accuracy",
    )
    above.set(
        ylabel="accuracy",
        title=f"expected calibration error {error:.3f}",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    below.bar((np.arange(bins) + 0.5) / bins, count / count.sum(), 0.92 / bins, color=MOCA)
    below.set(xlabel="confidence", ylabel="share of labels")
    text = f"Accuracy by confidence of {int(count.sum())} labels; calibration error {error:.3f}."
    return finished(figure, title, text)


def _diagonal(axes: Axes) -> None:
    axes.plot((0, 1), (0, 1), color=QUIET, ls="--", lw=1.2, label="calibrated")
