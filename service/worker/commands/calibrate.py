"""Calibration of a stream's sensitivity on its own labels, as a job in the background.

The result depends on the labels and the position in the log alone: applying the command again gives
the same.
"""

from __future__ import annotations

from msgspec.structs import replace

from model_core.sensitivity import own
from model_core.stream import calibration
from model_core.stream.calibration import Continuations, EffectiveRates
from service.observability import metrics
from service.wire import StoredCalibration
from service.worker.commands import rerun
from service.worker.commands.rerun import Steps
from service.worker.filtering import alarm_threshold, seasons
from service.worker.filtering.history import retained
from service.worker.streams import step_inputs
from service.worker.streams.registry import Engine
from service.worker.streams.series import past_of
from service.worker.streams.stream import Stream


def calibrate(engine: Engine, stream: Stream) -> Steps[None]:
    """Calibrate the threshold of a stream's sensitivity, unless that was done meanwhile."""
    head = stream.live()
    slab = stream.slab
    if slab is None or head.alarm is None or not alarm_threshold.uncalibrated(head, slab):
        stream.end_calibration()
        return
    requested = head.settings.sensitivity
    assert requested is not None
    most = min(own.MOST, engine.settings.max_replay)
    records = retained(stream, engine.store, most)[-most:]
    records = seasons.known_now(stream, records, head.settings.seasonal)
    alarm = head.alarm
    stored = StoredCalibration(head.scored, head.seq)
    hazard, outlier_rate = step_inputs.effective_rates(slab.model, head.settings)
    (table,) = step_inputs.hazard_table(slab.model, [hazard])
    metrics.REPLAYED.inc(len(records))
    steps = calibration.of_filter(
        slab,
        stream.row,
        past_of(slab.model, records, head.belief_override),
        head.stated,
        EffectiveRates(table, outlier_rate),
        requested["false_alarms_per_1000"],
        Continuations(stream.name, head.generation, head.seq),
    )
    try:
        calibrated = yield from rerun.ticking(engine, steps)
    except ValueError:  # too few of the labels are retained, or none differ
        head.alarm = replace(alarm, calibration=stored)
    else:
        stored.false_alarms_per_1000 = calibrated.false_alarms_per_1000
        head.alarm = replace(alarm, threshold=calibrated.threshold, calibration=stored)
    stream.end_calibration()
    stream.touch(head.updated_ms)
