"""The readout of a step against plain loops over hypotheses, and the kernel against the filter."""

import math

import numpy as np
import pytest

from model_core import hazard as hazards
from model_core import readout
from model_core.compiled import LABEL, SETTLED
from model_core.readout import NUMBERS, Readout
from model_core.stream.events import Watch
from model_core.table import Layout
from tests.model_core.cases import run, series
from tests.model_core.registry import case

WINDOW, MOST, STEPS = 3, 4, 10


def batch_of(model_case, hazard):
    """Two streams that change at different times; one lacks a label."""
    return [
        series(model_case, seed, STEPS, labelled=[1, 1, 1, 0], hazard=hazard) for seed in (1, 2)
    ]


def hypotheses(state, row):
    """Slots that are alive: log probability, score, start, the start before, totals at start."""
    belief, seq = state.belief, int(state.seq[row])
    return [
        {
            "log_prob": belief.log_prob[row, slot].item(),
            "score": belief.score[row, slot].item(),
            "start": seq - 1 - int(belief.run_length[row, slot]),
            "previous": int(belief.previous_start[row, slot]),
            "totals": state.totals_at_start[row, slot].tolist(),
            "changes": belief.changes[row, slot].item(),
            "gap": belief.gap[row, slot].item(),
        }
        for slot in range(belief.log_prob.shape[1])
        if math.isfinite(belief.log_prob[row, slot])
    ]


def earliest_best(alive, key):
    """The largest; of what rounding alone keeps apart, the earliest start."""
    most = max(each[key] for each in alive)
    return min(
        (each for each in alive if each[key] >= most - 1e-12), key=lambda each: each["start"]
    )


def check(found, step, row, watch, hazard):
    settled, since, threshold = watch
    alive = hypotheses(step.state, row)
    last = int(step.state.seq[row]) - 1
    mass = {each["start"]: math.exp(each["log_prob"]) for each in alive}
    changed = sum(p for start, p in mass.items() if start > settled)
    of_units = {each["start"]: math.exp(each["log_prob"] - each["gap"]) for each in alive}
    unchanged = sum(
        of_units[each["start"]] * rate(hazard, each, last)
        for each in alive
        if each["start"] <= settled
    )
    later = sum(p for start, p in of_units.items() if start > settled)
    evidence = later / max(unchanged, 1e-290)
    alarm = 0 < threshold <= evidence
    about = [each for each in alive if each["start"] > settled] if alarm else alive
    event = earliest_best(about, "log_prob")
    assert found.changed_probability == pytest.approx(changed, abs=1e-12)
    assert found.evidence == pytest.approx(evidence, rel=1e-9)
    asked = evidence >= threshold or since < settled
    # Of a new change starts after what is settled, else those of the last confirmed one.
    after = settled if event["start"] > settled else since
    likely = fewest({start: p for start, p in mass.items() if start > after}) if asked else []
    share = sum(mass[start] for start in likely)
    total = sum(p for start, p in mass.items() if start > after)
    assert found.coverage == pytest.approx(share / total if likely else 0.0, abs=1e-12)
    if likely:
        assert (last - found.longest, last - found.shortest) == (min(likely), max(likely))
    recent = sum(p for start, p in mass.items() if last - start < WINDOW)
    assert found.recent_change_probability == pytest.approx(recent, abs=1e-12)
    assert last - found.event_run_length == event["start"]
    assert found.event_probability == pytest.approx(math.exp(event["log_prob"]), abs=1e-12)
    assert found.event_previous_start == event["previous"]
    assert found.start_totals == event["totals"]
    assert found.totals == step.state.totals[row].tolist()
    assert found.best_start == earliest_best(alive, "score")["start"]
    assert last - found.map_run_length == earliest_best(alive, "log_prob")["start"]
    mean = sum(p * (last - start) for start, p in mass.items())
    assert found.mean_run_length == pytest.approx(mean, abs=1e-9)
    assert found.hypotheses == len(alive)
    assert found.ok == bool(step.info.ok[row])
    assert found.pruned_mass == step.info.pruned_mass[row].item()
    assert found.born_previous_start == step.info.born_previous_start[row].item()


def fewest(mass):
    """The fewest starts with .9 of the probability: the likeliest ones, of equal ones the first."""
    total, chosen = sum(mass.values()), []
    if not total:
        return []
    grains = {start: math.floor(p / total / 1e-9) for start, p in mass.items()}
    for start in sorted(mass, key=lambda start: (-grains[start], start)):
        if sum(mass[other] for other in chosen) / total >= 0.9 - 1e-12 or not grains[start]:
            break
        chosen.append(start)
    return chosen


def rate(hazard, hypothesis, steps):
    """Hazard by which the evidence is measured, after so many steps of a time of 1."""
    if hazard[0] == hazards.LEARNED:
        _, a, b = hazard
        return (a + hypothesis["changes"]) / (a + b + steps)
    return max(hazard)


HAZARDS = [(0.01,), (0.3, 0.01, 0.0, 0.1), hazards.learned(0.5, 3.0)]


@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("name", ["gaussian-1", "multivariate-2", "poisson", "alpaca-1"])
def test_it_is_what_loops_over_the_hypotheses_find(name, hazard):
    one = case(name)
    layout, prior = Layout(one.model, MOST), one.prior(2)
    hazards_of_both, inputs = np.array([hazard, hazard]), np.zeros((2, LABEL))
    for step in run(one, batch_of(one, hazard), MOST):
        held = layout.packed(step.state, prior)
        numbers = readout.columns(layout, *held, step.info).numpy()
        for settled in (0, 4, 9):
            for since, threshold in ((settled, 0.0), (settled, 0.05), (2, 100.0)):
                inputs[:, SETTLED:LABEL] = settled, since, threshold
                table, _ = readout.table(layout, numbers, inputs, hazards_of_both, WINDOW)
                for row, found in enumerate(readout.rows(table)):
                    check(found, step, row, Watch(settled, since, threshold), hazard)


def test_the_columns_are_the_numbers_of_a_readout_in_order():
    others = ("totals", "start_totals", "regime", "new_probability", "return_evidence", "returned")
    assert (*NUMBERS, *others) == Readout._fields
    assert tuple(NUMBERS)[: len(readout.OF_STEP)] == readout.OF_STEP
    values = np.arange(len(NUMBERS) + 6.0)
    (found,) = readout.rows(values[None])
    scalars = list(found[: len(NUMBERS)])
    assert scalars == [kind(at) for at, kind in enumerate(NUMBERS.values())]
    assert (found.totals, found.start_totals) == ([19.0, 20.0, 21.0], [22.0, 23.0, 24.0])
