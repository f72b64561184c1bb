"""Calibration charts of real labels and of classifiers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from training.figures import palette
from training.figures.chart import Axis, Band, Bars, Chart, Floats, Line, Panel, Rules
from training.statistics import calibration
from training.statistics.calibration import Reliability

LEVELS = np.linspace(0.05, 0.95, 19)
MOCA = palette.METHODS["MOCA"].colour


def real(
    values: Tensor, bins: int = calibration.BINS, title: str = "Calibration of the predictive"
) -> Chart:
    """PIT histogram with the 95 % band of uniform PITs, and coverage of central intervals."""
    count = int((~torch.isnan(values)).sum())
    off = calibration.distance(values)
    text = f"{count} PITs, {off:.3f} from uniform (Kolmogorov-Smirnov)."
    return Chart(title, ((_histogram(values, count, bins), _coverage(values)),), text, (340,))


def classifier(reliability: Reliability, title: str = "Calibration of the classifier") -> Chart:
    """Accuracy against confidence, above the frequency of each confidence."""
    confidence = _numbers(reliability.confidence)
    accuracy = _numbers(reliability.accuracy)
    count = _numbers(reliability.count)
    bins = len(count)
    error = calibration.calibration_error(reliability)
    full = count > 0
    unit = (0.0, 1.0)
    line = Line(confidence[full], accuracy[full], "accuracy", MOCA, symbol="circle")
    above = Panel(
        Axis("confidence", unit),
        Axis("accuracy", unit),
        (_diagonal(), line),
        f"expected calibration error {error:.3f}",
        linked=True,
    )
    middle = (np.arange(bins) + 0.5) / bins
    share = count / count.sum()
    bars = Bars(middle, share, 0.92 / bins, colour=MOCA)
    below = Panel(Axis("confidence", unit), Axis("share of labels"), (bars,), linked=True)
    text = f"Accuracy by confidence of {int(count.sum())} labels; calibration error {error:.3f}."
    return Chart(title, ((above,), (below,)), text, (340, 150), 560)


def _histogram(values: Tensor, count: int, bins: int) -> Panel:
    # Densities do not depend on the number of labels and bins.
    unit = bins / count
    low, high = calibration.uniform_band(count, bins)
    middle = (np.arange(bins) + 0.5) / bins
    heights = _numbers(calibration.histogram(values, bins)) * unit
    band = Band(
        np.array([0.0, 1.0]),
        np.full(2, low * unit),
        np.full(2, high * unit),
        "95 % of uniform, each bin",
        palette.CURRENT,
        0.3,
    )
    bars = Bars(middle, heights, 0.92 / bins, "labels", palette.METHODS["COE"].colour)
    one = Rules(np.array([1.0]), "", palette.QUIET, "dash", upright=False)
    top = 1.1 * max(float(heights.max()), high * unit)
    y = Axis("density", (0.0, top))
    return Panel(Axis("PIT", (0.0, 1.0)), y, (bars, band, one), "PIT histogram")


def _coverage(values: Tensor) -> Panel:
    shares = _numbers(calibration.coverage(values, torch.from_numpy(LEVELS)))
    line = Line(LEVELS, shares, "coverage", MOCA, symbol="circle")
    x = Axis("level of the central interval", (0.0, 1.0))
    y = Axis("share of labels inside", (0.0, 1.0))
    return Panel(x, y, (_diagonal(), line), "coverage", equal=True)


def _diagonal() -> Line:
    ends = np.array([0.0, 1.0])
    return Line(ends, ends, "calibrated", palette.QUIET, "dash", width=1.2)


def _numbers(values: Tensor) -> Floats:
    return values.detach().cpu().double().numpy()
