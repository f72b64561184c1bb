"""Calibration of a stream's sensitivity on its own labels, as a job in the background.

The labels that are retained, in hindsight, tell how quiet ones go on. Copies of the
stream's filter go through such series, and what they confirm is a false alarm. The result depends
on the labels and the position in the log alone: applying the command again gives the same.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from model_core import filter as moca
from model_core.filter import Prior
from model_core.sensitivity import own, quiet
from model_core.transfer import to_host
from service.wire import StoredCalibration
from service.worker.commands import rerun
from service.worker.commands.rerun import Steps
from service.worker.filtering import alarm_threshold, seasons
from service.worker.filtering.history import retained
from service.worker.streams import step_inputs
from service.worker.streams.registry import Engine
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
    calibration = StoredCalibration(head.scored, head.seq)
    labelled = [record for record in records if record.y is not None]
    try:
        starts = (yield from rerun.segmented(engine, stream, records)) if labelled else []
        y = np.array([step_inputs.number(record.y) - record.offset for record in labelled])
        regime = own.learned(y, [record.seq for record in labelled], starts)
    except ValueError:  # too few of the labels are retained, or none differ
        head.alarm = replace(alarm, calibration=calibration)
    else:
        counts = yield from _confirmations(engine, stream, regime)
        rate = requested["false_alarms_per_1000"]
        calibrated = own.calibrated(counts, own.SERIES * own.STEPS, rate)
        calibration.false_alarms_per_1000 = calibrated.false_alarms_per_1000
        head.alarm = replace(alarm, threshold=calibrated.threshold, calibration=calibration)
    stream.end_calibration()
    stream.touch(head.updated_ms)


def _confirmations(engine: Engine, stream: Stream, regime: quiet.Quiet) -> Steps[list[int]]:
    """Events confirmed in quiet continuations, by threshold."""
    head = stream.live()
    slab = stream.slab
    assert slab is not None
    hazard, outlier_rate = step_inputs.effective_rates(slab.model, head.settings)
    (table,) = step_inputs.hazard_table(slab.model, [hazard])
    y = own.continuations(regime, stream.name, head.generation, head.seq)
    state = slab.state(stream.row)
    state = moca.rebuild(state, to_host(moca.leaves(state)))
    prior = slab.row_prior(stream.row)
    prior = Prior(type(prior.stats)(*to_host(prior.stats)), *to_host(prior[1:]))
    counts: list[int] = []
    for so_far in own.confirmations(slab.model, state, prior, y, table, outlier_rate):
        counts = so_far
        engine.tick()
        yield
    return counts
