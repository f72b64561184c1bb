"""What a stream's settings are unless they are given; the service and evaluations share them."""

from __future__ import annotations

from typing import NamedTuple

# Observations after an alarm on `anomaly` in which no other is raised. What lasts is strange for a
# while, and is one alarm: the figures on alarms were measured with this silence.
ALARM_SILENCE = 100
# Observations from which on a stream looks for seasons by default. Short series have a few periods
# of anything: of TCPD, all shorter than this, measles and jfk_passengers get worse by a season that
# does not last, and none gets better.
SEASONS_FROM = 1000


# Outputs of a vector up to which `vector_model` serves: its state grows with their square.
VECTOR_OUTPUTS = 16


class Defaults(NamedTuple):
    """Settings of a stream; hazard and outlier rate are the model's.

    model, vector_model: of streams with one output, and with two to `VECTOR_OUTPUTS`.
    confirm_probability: `changed_probability` at which a change is confirmed; None: it is confirmed
    once it was suspected for `confirm_after` observations. anomaly_alarm: `anomaly` at which an
    anomaly event is raised; None: there are none. seasonal: whether seasons are found in labels,
    and taken from them: from the first one on, or never; None: from `SEASONS_FROM` on.
    """

    model: str = "averaged"
    vector_model: str = "joint"
    max_hypotheses: int = 50
    confirm_probability: float | None = 0.99
    confirm_after: int = 10
    warmup: int = 20
    history: int = 2000
    anomaly_alarm: float | None = 0.999
    seasonal: bool | None = None
