"""Prove that the tests bite: apply one small defect at a time to a copy, and run its tests.

    python -m tests.mutations              every mutation, in a copy of this checkout (ten minutes)
    python -m tests.mutations fate 429     those whose names contain one of these words

Prints for each whether it was caught, and by which test. A mutation whose text is not in the source
any more fails the run: move it along with the code. Ends with 1 where a mutation survived. Tests of
kernels are left out: they compare with the filter. A change of what kernels hold has those compiled
anew that the other tests need.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("moca_client", "service", "model_core", "training", "tests", "deploy", "docs")
LEFT_OUT = ("compiled", "kernels")
LIMIT_S = 900  # of the tests of one area: a defect may make them wait

# What is most likely to catch a mutation comes first: the first failure ends its run.
FILTER = " ".join(
    f"tests/model_core/test_{name}.py"
    for name in ("readout", "hazard", "actions", "filter", "detector", "believing")
)
EVENTS = (
    "tests/model_core/test_events.py tests/model_core/test_detector.py "
    "tests/service/worker/filtering/test_stream_events.py tests/service/worker/test_detector.py"
)
WORKER = (
    "tests/service/worker/test_worker.py tests/service/worker/test_poison.py "
    "tests/service/worker/test_exactly_once.py tests/service/worker/streams"
)
API = " ".join(
    f"tests/service/api/test_{name}.py" for name in ("observations", "forms", "overload")
)


class Mutation(NamedTuple):
    """A defect: `old` stands once in `file` and becomes `new`. area: files and folders of tests."""

    name: str
    file: str
    old: str
    new: str
    area: str


MUTATIONS = [
    # --- filter ----------------------------------------------------------------------------------
    Mutation(
        "hazard: the table is read one entry late",
        "model_core/hazard.py",
        "return table.gather(-1, run_length.clamp(0, table.shape[-1] - 1))",
        "return table.gather(-1, (run_length + 1).clamp(0, table.shape[-1] - 1))",
        FILTER,
    ),
    Mutation(
        "hazard: supervision keeps the hazard's survival",
        "model_core/hazard.py",
        "torch.where(supervised, torch.log1p(-changepoint), log_survival)",
        "log_survival",
        FILTER,
    ),
    Mutation(
        "belief: the pruned mass is not renormalised",
        "model_core/belief.py",
        "log_prob=log_prob - torch.log1p(-mass), score=score",
        "log_prob=log_prob, score=score",
        FILTER,
    ),
    Mutation(
        "belief: mass below a run length includes it",
        "model_core/compiled/belief.py",
        "spare[i] = mass[i] if age[i] < below else 0.0",
        "spare[i] = mass[i] if age[i] <= below else 0.0",
        FILTER,
    ),
    Mutation(
        "belief: an alarm needs more than its threshold",
        "model_core/compiled/belief.py",
        "if number[THRESHOLD] > 0 and evidence >= number[THRESHOLD]:",
        "if number[THRESHOLD] > 0 and evidence > number[THRESHOLD]:",
        FILTER,
    ),
    Mutation(
        "belief: a long time without observations is evidence",
        "model_core/compiled/belief.py",
        "out[i] = work[POSTERIOR, i] - gap[i]",
        "out[i] = work[POSTERIOR, i]",
        FILTER,
    ),
    Mutation(
        "averaged: no label is an outlier",
        "model_core/upm/averaged.py",
        "outlier_rate: float = field(default=0.001, kw_only=True)",
        "outlier_rate: float = field(default=0.0, kw_only=True)",
        "tests/model_core/test_detector.py",
    ),
    Mutation(
        "joint: regimes begin with uncorrelated outputs",
        "model_core/upm/joint.py",
        "(stats.psi + apart).unsqueeze(2)",
        "stats.psi.unsqueeze(2)",
        "tests/model_core/test_believing.py",
    ),
    Mutation(
        "joint: the covariance of many outputs may be any",
        "model_core/upm/joint.py",
        "FREEDOM = 2.0",
        "FREEDOM = 0.0",
        "tests/model_core/test_detector.py",
    ),
    Mutation(
        "joint: labels keep nothing of the trend",
        "model_core/maths/context.py",
        "SURE = 3.0",
        "SURE = 1e9",
        "tests/model_core/test_believing.py tests/model_core/test_detector.py",
    ),
    Mutation(
        "joint: outputs that are missing count for correlations",
        "model_core/upm/joint.py",
        "z = watched[:, -self.y_dim :]",
        "z = torch.nan_to_num(learned[:, -self.y_dim :], nan=1.0)",
        "tests/model_core/test_believing.py",
    ),
    Mutation(
        "joint: what is expected of missing outputs is known for certain",
        "model_core/compiled/models/multivariate.py",
        "share[i] * (moved[i] / (2.0 * half[i]))",
        "0.0 * moved[i]",
        "tests/model_core/test_kernels.py",
    ),
    Mutation(
        "kernels: segments lack the spread of missing outputs",
        "model_core/compiled/belief.py",
        "square = centred * centred + expected[outputs + o * outputs + o]",
        "square = centred * centred",
        "tests/model_core/test_kernels.py",
    ),
    Mutation(
        "correction: an outlier is an error of a forecast",
        "model_core/correction.py",
        "if count > 0.0 and not outlying:",
        "if count > 0.0:",
        "tests/model_core/test_correction.py",
    ),
    Mutation(
        "warm-up: a scale that is too large stays",
        "model_core/stream/warmup.py",
        "return _quantile(there, 0.95) - _quantile(there, 0.05) < SHRUNK * scale",
        "return False",
        "tests/model_core/test_scales.py",
    ),
    Mutation(
        "warm-up: one calm regime of several takes the scale anew",
        "model_core/stream/warmup.py",
        "if len(there) < OFTEN or _quantile",
        "if len(there) < 20 or _quantile",
        "tests/model_core/test_scales.py",
    ),
    Mutation(
        "warm-up: a scale by labels that are mostly the same is taken anew again and again",
        "model_core/stream/warmup.py",
        " or _quantile(there, 0.75) == _quantile(there, 0.25):",
        ":",
        "tests/model_core/test_scales.py",
    ),
    Mutation(
        "forecasts: quantiles far out cost paths what others do",
        "service/worker/streams/validation.py",
        "FAR_QUANTILE = 3",
        "FAR_QUANTILE = 0",
        "tests/service/worker/streams/test_refusals.py",
    ),
    Mutation(
        "remote write: a long text that many series name is read for each",
        "service/api/parsing/series.py",
        "if size > MAX_KEY:",
        "if False:",
        "tests/service/api/test_prometheus.py",
    ),
    Mutation(
        "season: searches are a half apart for ever",
        "model_core/stream/season.py",
        "EARLY_GROWTH if at < SETTLED else GROWTH",
        "EARLY_GROWTH",
        "tests/model_core/test_season.py",
    ),
    Mutation(
        "paths: the label drawn is not learned",
        "model_core/compiled/step.py",
        "            number[LABELLED] = 1.0\n            labelled = True",
        "            labelled = False",
        "tests/model_core/test_horizon.py",
    ),
    Mutation(
        "warm-up: an outlier makes the scale as large as itself",
        "model_core/stream/warmup.py",
        "if usual > 0 and deviation > OUTLYING * usual:",
        "if usual > 0 and deviation > 1e9 * usual:",
        "tests/model_core/test_detector.py",
    ),
    Mutation(
        "coarse labels: outputs of a batch are spread as its first is",
        "model_core/stream/slab.py",
        "inputs[coarse, label] += known[:, :-1] * dither(positions, self.model.y_dim)",
        "inputs[coarse, label] += known[:, :-1] * dither(positions[:1], self.model.y_dim)",
        "tests/model_core/test_resolution.py",
    ),
    Mutation(
        "predictions: components come as hypotheses lie in their slots",
        "model_core/stream/slab.py",
        "alive = moca.order(grown)[0, : int(torch.isfinite(belief.log_prob[0]).sum())]",
        "alive = torch.isfinite(belief.log_prob[0]).nonzero().squeeze(-1)",
        "tests/service/worker/streams/test_slab.py",
    ),
    Mutation(
        "compiled steps: a longer table of hazards is cut off",
        "model_core/stream/batched.py",
        "return len(packed.hazard[0]) <= self.width",
        "return True",
        "tests/model_core/test_batched.py",
    ),
    Mutation(
        "compiled steps: quantiles that a device has not found are left out",
        "model_core/stream/slab.py",
        "own.quantiles[lacking] = found.quantiles",
        "found.quantiles[:] = own.quantiles[lacking]",
        "tests/model_core/test_batched.py",
    ),
    Mutation(
        "devices: constants of a step are copied from the host",
        "model_core/transfer.py",
        "    if on_host(like):\n        return like",
        "    if True:\n        return like",
        "tests/model_core/test_device.py",
    ),
    Mutation(
        "held labels: a sensor that sticks is never seen again",
        "model_core/stream/resolution.py",
        "same.append(0 < state[0] <= most)",
        "same.append(0 < state[0])",
        "tests/model_core/test_resolution.py",
    ),
    Mutation(
        "held labels: a refused step moves the state of a row",
        "model_core/stream/slab.py",
        "labels = y[[i for i in own if taken[i]]]",
        "labels = y[own]",
        "tests/service/worker/streams/test_slab.py",
    ),
    Mutation(
        "held labels: those that a held series only repeats count for the warm-up",
        "model_core/stream/warmup.py",
        "return int((~repeated(y, most)).sum()) >= warmup",
        "return True",
        "tests/model_core/test_resolution.py",
    ),
    Mutation(
        "quiet: repeats of a held series are scored",
        "model_core/compiled/plain.py",
        "                rest.scored[at] += 1\n",
        "            rest.scored[at] += 1\n",
        "tests/service/worker/filtering/test_quiet.py",
    ),
    Mutation(
        "filter: an unlabelled observation has an inlier's weight",
        "model_core/filter.py",
        "return likelihood, torch.where(labelled, weight, 0.0), densities[:, -1]",
        "return likelihood, weight, densities[:, -1]",
        FILTER,
    ),
    Mutation(
        "filter: a step that is not finite is kept",
        "model_core/filter.py",
        "return (new if fine else choose(ok, new, state)), info",
        "return new, info",
        FILTER,
    ),
    Mutation(
        "filter: totals at a regime's start are those after it",
        "model_core/filter.py",
        "over(born, state.totals_at_start), state.totals[:, None], state.totals_at_start",
        "over(born, state.totals_at_start), state.totals_at_start, state.totals_at_start",
        FILTER,
    ),
    # --- events and pipeline ---------------------------------------------------------------------
    Mutation(
        "events: _fate, a start at the suspicion itself is kept",
        "model_core/stream/events.py",
        "previous == confirmed or previous > last.suspected_at:",
        "previous == confirmed or previous >= last.suspected_at:",
        EVENTS,
    ),
    Mutation(
        "events: confirmed one observation late",
        "model_core/stream/events.py",
        "reading.seq - event.suspected_at >= (settings",
        "reading.seq - event.suspected_at > (settings",
        EVENTS,
    ),
    Mutation(
        "events: a change as old as it has to be is not confirmed",
        "model_core/stream/events.py",
        "reading.seq + 1 - reading.start < settings.min_duration",
        "reading.seq - reading.start < settings.min_duration",
        EVENTS,
    ),
    Mutation(
        "events: the doubt of a shift is in units of the label as it is in sd",
        "model_core/stream/events.py",
        "settings.min_shift + DOUBT * shift.error * shift.sd",
        "settings.min_shift + DOUBT * shift.error",
        EVENTS,
    ),
    Mutation(
        "events: evidence at the threshold does not confirm",
        "model_core/stream/events.py",
        "enough = reading.evidence >= settings.threshold",
        "enough = reading.evidence > settings.threshold",
        EVENTS,
    ),
    Mutation(
        "events: a start after the suspicion stays one event",
        "model_core/stream/events.py",
        "if event is not None and reading.start > event.suspected_at:",
        "if event is not None and reading.start > event.suspected_at + 1:",
        EVENTS,
    ),
    Mutation(
        "events: an event withdrawn is not reported",
        "model_core/stream/events.py",
        "return state._replace(event=None), [gone]",
        "return state._replace(event=None), []",
        EVENTS,
    ),
    Mutation(
        "events: anomalies right after the silence are dropped",
        "model_core/stream/events.py",
        "silent = last is not None and seq - last < ALARM_SILENCE",
        "silent = last is not None and seq - last <= ALARM_SILENCE",
        EVENTS,
    ),
    Mutation(
        "pipeline: a refused step ends the series silently",
        "model_core/stream/detectors.py",
        "        if len(answers) < len(seen):",
        "        if len(answers) + 1 < len(seen):",
        "tests/service/worker/test_detector.py tests/training/test_online.py",
    ),
    Mutation(
        "delayed labels: one label more may be pending",
        "service/worker/filtering/delayed_labels.py",
        "if len(head.pending) > head.settings.label_window and head.pending[0].pending:",
        "if len(head.pending) > head.settings.label_window + 1 and head.pending[0].pending:",
        "tests/service/worker/filtering/test_delayed_labels.py",
    ),
    Mutation(
        "delayed labels: settings of an earlier time are lost",
        "service/worker/filtering/delayed_labels.py",
        "if seq < settings.until)",
        "if seq <= settings.until)",
        "tests/service/worker/filtering/test_delayed_labels.py",
    ),
    Mutation(
        "alarm periods: a late label counts as an observation",
        "service/worker/batch.py",
        "seen_now if at is None else [])",
        "seen_now)",
        "tests/service/worker/streams/test_alarm_period.py",
    ),
    Mutation(
        "quiet: a start that is new is none",
        "model_core/compiled/step.py",
        "return bool(start <= number[SETTLED])",
        "return bool(start <= number[SETTLED] + 100)",
        "tests/service/worker/filtering/test_quiet.py",
    ),
    Mutation(
        "quiet: a label that is no whole number is a count",
        "model_core/compiled/plain.py",
        "fits = fits and (not whole or math.floor(value) == value)",
        "pass",
        "tests/service/worker/filtering/test_quiet.py",
    ),
    Mutation(
        "quiet: a filter does not begin anew for a season",
        "service/worker/filtering/quiet.py",
        "looking = sorted({*due, *(i for i, moved in learned.items() if moved)})",
        "looking = due",
        "tests/service/worker/filtering/test_quiet.py",
    ),
    Mutation(
        "tail: rows that are alike are read without a check",
        "service/wire/stored_records.py",
        "if table[:, :BEFORE_ROWS].tobytes() != expected.tobytes():",
        "if len(expected) != len(table):",
        "tests/service/worker/streams/test_tail.py",
    ),
    Mutation(
        "warm-up: rows lose the outlier rate that they met",
        "service/wire/stored_records.py",
        "usual = _USUAL_TABLE[rows[0, 0] // OUTLIERS % 4]",
        "usual = _USUAL_TABLE[0]",
        "tests/service/worker/streams/test_step_inputs.py",
    ),
    Mutation(
        "tail: usual rows are read without a check",
        "model_core/compiled/checksums.py",
        "if _number(data, at + 1, SUM) != _sum(data, body, end, start):",
        "if row > end + _sum(data, body, end, start):",
        "tests/service/worker/streams/test_tail.py",
    ),
    Mutation(
        "tail: usual rows are read over a gap",
        "model_core/compiled/checksums.py",
        "(i > 0 and begin != position)",
        "(i > 0 and begin < position)",
        "tests/service/worker/streams/test_tail.py",
    ),
    Mutation(
        "tail: blocks that are read by their number may begin after what is looked for",
        "service/store/streams.py",
        "elif reply and begin_of(reply[0]) <= spans[i].first:",
        "elif reply:",
        "tests/service/store/test_reads.py",
    ),
    Mutation(
        "commit: a checksum does not say where its bytes belong",
        "model_core/compiled/checksums.py",
        "_enter_sum(out, body, stop, starts[i, 1], marks[1])",
        "_enter_sum(out, body, stop, 0, marks[1])",
        "tests/model_core/test_checksums.py",
    ),
    Mutation(
        "log: a read goes on from where it was begun before",
        "service/store/log.py",
        "line.read == read and read.block_ms",
        "line.read is not None and read.block_ms",
        "tests/service/store/test_log.py",
    ),
    Mutation(
        "quiet: a row goes on beyond what moved an event",
        "model_core/compiled/step.py",
        "if ending and b > 0 and rows[b] == rows[b - 1] and not runs.quiet[b - 1]:",
        "if ending and b > 1 and rows[b] == rows[b - 2] and not runs.quiet[b - 2]:",
        "tests/service/worker/filtering/test_quiet.py",
    ),
    Mutation(
        "table: a state is written one observation late",
        "service/worker/streams/stream.py",
        'self.rows["position"]["seq"] >= self.rows["due"]',
        'self.rows["position"]["seq"] > self.rows["due"]',
        "tests/service/worker/streams/test_table.py",
    ),
    Mutation(
        "table: what a stream slept through is not in its head",
        "service/worker/streams/stream.py",
        "        if rows:\n            self.tail.put_rows",
        "        if len(rows) > 1:\n            self.tail.put_rows",
        "tests/service/worker/streams/test_table.py",
    ),
    Mutation(
        "tail: rows that lie beside a position are read backwards",
        "service/worker/streams/stream.py",
        'parts = [self.beside[at, : row["beside_bytes"]].tobytes()]',
        'parts = [self.beside[at, : row["beside_bytes"]].tobytes()[::-1]]',
        "tests/service/worker/streams/test_table.py",
    ),
    Mutation(
        "tail: rows beside a position are not read",
        "service/store/scripts/rows.lua",
        "if #block > 0 and first_of(block) < stop",
        "if #block > 0 and first_of(block) < start",
        "tests/service/store/test_reads.py",
    ),
    Mutation(
        "tail: a stored row stays beside the one that stands for it",
        "service/worker/streams/history.py",
        "if first < self.stored:",
        "if first < self.stored - 1:",
        "tests/service/worker/streams/test_tail.py",
    ),
    Mutation(
        "tail: labels that were changed since they were looked at are not read again",
        "service/worker/streams/history.py",
        "self.unchanged = min(self.unchanged, record.seq)",
        "pass",
        "tests/service/worker/streams/test_tail.py",
    ),
    # --- append, commit, leases ------------------------------------------------------------------
    Mutation(
        "append: the bound refuses what just fits",
        "service/store/scripts/append.lua",
        "if waiting + count > bound then",
        "if waiting + count >= bound then",
        "tests/service/store",
    ),
    Mutation(
        "append: a repeated batch is appended again",
        "service/store/scripts/append.lua",
        "elseif tonumber(last) == number then",
        "elseif tonumber(last) == number + 1 then",
        "tests/service/store",
    ),
    Mutation(
        "rows: what is more than a number stands in the places of others",
        "service/wire/rows.py",
        "for i, other in enumerate(places, before):",
        "for i, other in enumerate(places):",
        "tests/service/worker/test_rows.py",
    ),
    Mutation(
        "tail: rows that no checkpoint covers are dropped",
        "service/worker/streams/stream.py",
        "oldest = min(head.retained_from, head.checkpoint)",
        "oldest = head.retained_from",
        "tests/service/worker/streams/test_tail.py",
    ),
    Mutation(
        "regimes: returns and fresh ones are counted for one another",
        "model_core/regimes.py",
        "(~fresh).to(weight.dtype)",
        "fresh.to(weight.dtype)",
        "tests/model_core/test_regimes.py",
    ),
    Mutation(
        "calendar: a window goes on at its end",
        "service/worker/filtering/rewriting.py",
        "span.start_ms <= at_ms < span.end_ms",
        "span.start_ms <= at_ms <= span.end_ms",
        "tests/service/worker/filtering/test_calendar.py",
    ),
    Mutation(
        "exclusion: the labels count all the same",
        "service/worker/commands/rerun.py",
        "    records[span] = changed[span]\n",
        "",
        "tests/service/worker/commands/test_reruns.py",
    ),
    Mutation(
        "append: observations are not counted in",
        "service/store/scripts/append.lua",
        "string.format('%.0f', appended + count))",
        "string.format('%.0f', appended))",
        "tests/service/store",
    ),
    Mutation(
        "commit: anyone's token commits",
        "service/store/scripts/commit.lua",
        "if call('GET', lease) ~= ARGV[from] then\n    return 'FENCED'",
        "if not call('GET', lease) then\n    return 'FENCED'",
        "tests/service/store",
    ),
    Mutation(
        "commit: a repeated commit is fenced",
        "service/store/scripts/commit.lua",
        "return offset == new and 'ALREADY' or 'FENCED'",
        "return 'FENCED'",
        "tests/service/store",
    ),
    Mutation(
        "commit: an entry applied in part is trimmed",
        "service/store/scripts/commit.lua",
        "if index == '-1' and #seq <= 15 then",
        "if #seq <= 15 then",
        "tests/service/store",
    ),
    Mutation(
        "commit: attempts are not forgotten with progress",
        "service/store/scripts/commit.lua",
        "'attempts', 0, 'attempt_offset', new, 'offset', new,",
        "'attempt_offset', new, 'offset', new,",
        "tests/service/store",
    ),
    Mutation(
        "commit: a drop takes a block with later rows",
        "service/store/scripts/commit.lua",
        "then old = last end",
        "then old = last + 1 end",
        "tests/service/store",
    ),
    Mutation(
        "leases: a lost lease is renewed",
        "service/store/scripts/renew.lua",
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then",
        "if not redis.call('GET', KEYS[1]) then",
        "tests/service/store",
    ),
    Mutation(
        "leases: a worker takes one partition less than its share",
        "service/worker/worker.py",
        "return ceil(partitions / max(workers, 1))",
        "return partitions // max(workers, 1)",
        WORKER,
    ),
    Mutation(
        "leases: a held-again partition still counts as lost",
        "service/worker/worker.py",
        "            self._lost.discard(lease.partition)\n",
        "",
        WORKER,
    ),
    Mutation(
        "worker: a quarantined command is not kept aside",
        "service/worker/commit.py",
        "self.effects(outcomes) + aside + changes.effects",
        "self.effects(outcomes) + changes.effects",
        WORKER,
    ),
    Mutation(
        "worker: answers are not remembered under their key",
        "service/worker/batch.py",
        "            if isinstance(task.refusal, Defect | UnknownModel) and not task.applied:",
        "            if not task.answers:",
        WORKER,
    ),
    # --- forms and gateway -----------------------------------------------------------------------
    Mutation(
        "forms: one observation more than the limit",
        "service/api/parsing/observations.py",
        "        limit = self._settings.max_observations\n        if count > limit:",
        "        limit = self._settings.max_observations\n        if count > limit + 1:",
        API,
    ),
    Mutation(
        "forms: positions of a list need not follow each other",
        "service/api/parsing/observations.py",
        "if seq - i != first or first < 0:",
        "if first < 0:",
        API,
    ),
    Mutation(
        "forms: a pending label may have a value",
        "service/api/parsing/observations.py",
        "if wide or (form.pending and label is not None):",
        "if wide:",
        API,
    ),
    Mutation(
        "gateway: outcomes are not read before a deadline",
        "service/api/gateway/gateway.py",
        "            if soon:",
        "            if not soon:",
        "tests/service/api/test_gateway.py",
    ),
    Mutation(
        "gateway: each command of a request has the whole deadline",
        "service/api/gateway/gateway.py",
        "max(self._deadline_s - self._waited_s, self._deadline_s / 2)",
        "self._deadline_s",
        "tests/service/api/test_gateway.py",
    ),
    Mutation(
        "overload: a wait of more than half the limit is refused",
        "service/api/gateway/load_shedding.py",
        "        if wait_s <= self._limit_s:\n            return None",
        "        if wait_s < self._limit_s / 2:\n            return None",
        API,
    ),
    Mutation(
        "refusals: one overtakes the answer before it",
        "service/api/server.py",
        "self._between and (self.cycle is None or self.cycle.response_complete)",
        "self._between",
        "tests/service/api/test_server.py",
    ),
    Mutation(
        "refusals: a body is taken for a request",
        "service/api/server.py",
        "        self._between = False\n",
        "",
        "tests/service/api/test_server.py",
    ),
    Mutation(
        "overload: a busy loop is no prompter once it is limited",
        "service/api/gateway/load_shedding.py",
        "(LAG_S if self._limit == math.inf else PROMPT_S)",
        "LAG_S",
        "tests/service/api/test_overload.py",
    ),
    # --- webhooks, client ------------------------------------------------------------------------
    Mutation(
        "webhooks: 429 is final",
        "service/webhooks/sender.py",
        "TRY_AGAIN = (408, 425, 429)",
        "TRY_AGAIN = (408, 425)",
        "tests/service/webhooks",
    ),
    Mutation(
        "webhooks: one attempt too few",
        "service/webhooks/runner.py",
        "if failure.final or attempt >= delivery.attempts:",
        "if failure.final or attempt + 1 >= delivery.attempts:",
        "tests/service/webhooks",
    ),
    Mutation(
        "client: 504 is not tried again",
        "moca_client/retry.py",
        "RETRIED = frozenset({429, 503, 504})",
        "RETRIED = frozenset({429, 503})",
        "tests/moca_client",
    ),
    Mutation(
        "client: an unsafe request is repeated when unsure",
        "moca_client/retry.py",
        "if not (unsure and call.repeat is Repeat.UNSAFE):",
        "if True:",
        "tests/moca_client",
    ),
    # --- training --------------------------------------------------------------------------------
    Mutation(
        "training: a gradient that is not finite is applied",
        "training/meta_training/loop.py",
        "    elif not skipped:\n        optimiser.step()",
        "    else:\n        optimiser.step()",
        "tests/training/meta_training",
    ),
    Mutation(
        "training: the worst parameters are kept",
        "training/meta_training/loop.py",
        "metric < progress.best_metric)",
        "metric > progress.best_metric)",
        "tests/training/meta_training",
    ),
    Mutation(
        "training: patience ends one validation late",
        "training/meta_training/loop.py",
        "waited >= patience * config.validation.every",
        "waited > patience * config.validation.every",
        "tests/training/meta_training",
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="mutations whose names contain one of these")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout, with its tests")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.words or any(w in m.name for w in options.words)]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="moca-mutants-") as folder:
        copy = Path(folder)
        for name in COPIED:
            shutil.copytree(options.root / name, copy / name)
        for path in options.root.glob("*.*"):
            if path.is_file():
                shutil.copy(path, copy)
        for mutation in chosen:
            survivors += not _caught(mutation, copy)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations caught", flush=True)
    return 1 if survivors else 0


def _caught(mutation: Mutation, root: Path) -> bool:
    path = root / mutation.file
    source = path.read_text()
    if source.count(mutation.old) != 1:
        sys.exit(f"{mutation.name}: expected its text once in {mutation.file}: move it along")
    path.write_text(source.replace(mutation.old, mutation.new))
    began = time.monotonic()
    try:
        by = _failure(root, mutation.area.split())
    finally:
        path.write_text(source)
    how = "caught" if by else "SURVIVED"
    print(f"{how:8} {time.monotonic() - began:5.0f} s  {mutation.name}: {by}", flush=True)
    return bool(by)


def _failure(root: Path, area: list[str]) -> str:
    """Name of the first test that fails; empty where all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    command += [*area, *(f"--ignore-glob=*{name}*" for name in LEFT_OUT)]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"the tests did not end within {LIMIT_S} s"
    if done.returncode == 0:
        return ""
    found = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != 1 or found is None:
        sys.exit(
            f"pytest ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        )
    return found.group(2)


if __name__ == "__main__":
    sys.exit(main())
