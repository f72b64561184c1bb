"""How sensitive a stream is, in false alarms: curves by simulation, and thresholds from them.

An alarm is an event that is confirmed as soon as `changed_probability` reaches a threshold. A false
one is confirmed in a series that has one regime.
"""

from model_core.sensitivity.calibrate import FORMAT, Plan, calibrate
from model_core.sensitivity.curve import ChosenThreshold, Curve, Delay, Point, choose, read

__all__ = [
    "FORMAT",
    "ChosenThreshold",
    "Curve",
    "Delay",
    "Plan",
    "Point",
    "calibrate",
    "choose",
    "read",
]
