"""What the service would say of a series, without a server; less its seasons, too."""

import csv
import math
from importlib import resources

import numpy as np
import pytest
from scipy import stats

from model_core.stream import warmup
from model_core.stream.events import Event
from model_core.stream.slab import OK_COLUMN, Refused, Slab
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.upm.averaged import Averaged
from model_core.upm.conjugate import Gaussian, Poisson
from training.online import StartBelief, follow, segmentation

LEVELS = (0.05, 0.5, 0.95)
SEASONAL = StreamSettings(seasonal=True)


def sample(name):
    text = (resources.files("service.samples") / f"{name}.csv").read_text()
    return [[float(row["y"])] for row in csv.DictReader(text.splitlines())]


def test_real_series_changed_once():
    for model in (Averaged(), Gaussian()):
        rows = sample("nile")
        followed = follow(model, rows)
        assert followed.confirmed() == segmentation(model, rows) == [28]
    followed = follow(Poisson(), sample("coal"))
    (start,) = followed.confirmed()
    assert 1886 <= 1851 + start <= 1893


def test_a_warm_up_has_what_is_there_of_labels():
    nan = math.nan
    rows = [[1.0, nan], [nan, 7.0], [nan, nan], [2.0, 9.0], [4.0, nan], [8.0, 8.0], [0.0, 0.0]]
    moments = [3.0, 8.0], [pytest.approx(3.095696), 1.0]
    assert warmup.first(Averaged(2), rows, 3) == (moments, 6)
    (location, _), count = warmup.first(Gaussian(2), rows, 3)  # learns from whole labels alone
    assert (location, count) == ([2.0, 8.0], 7)


def test_a_missing_label_is_passed_over():
    rows = sample("nile")
    gap = [[math.nan] if i in (5, 40) else row for i, row in enumerate(rows)]
    followed = follow(Averaged(), gap)
    assert followed.confirmed() == [28]
    assert segmentation(Averaged(), gap) == [28]


def test_a_relocated_event_counts_where_it_lies_by_then():
    event = Event(1, "confirmed", 30, 33)
    events = [(33, event._replace(state="suspected")), (43, event), (50, event._replace(start=28))]
    withdrawn = Event(2, "withdrawn", 60, 61)
    followed = follow(Averaged(), sample("nile"))
    assert followed._replace(events=[*events, (70, withdrawn)]).confirmed() == [28]


def test_answers_are_those_after_the_warm_up():
    rows = sample("nile")
    followed = follow(Averaged(), rows, DEFAULTS, LEVELS)
    assert np.isnan(followed.changed).sum() == 20
    for numbers in (followed.log_score, followed.changed, followed.recent):
        assert math.isnan(numbers[19])
        assert math.isfinite(numbers[20])
    low, median, high = followed.summary.quantiles[50, :, 0]
    assert low < median < high
    assert followed.summary.cdf[28, 0] < 0.5  # it fell
    assert np.isnan(followed.summary.cdf[:20]).all()


def test_a_start_ranks_by_those_before_it_and_a_share_of_its_own_probability():
    belief = StartBelief(9, 9, 6, 8, 0.9, np.array([9, 8, 7, 6]), np.array([0.1, 0.5, 0.1, 0.3]))
    ranks = [belief.rank(start, 0.5) for start in (5, 6, 8, 9)]
    assert ranks == pytest.approx([0.0, 0.15, 0.65, 0.95])
    assert belief.rank(8, 0.0) == pytest.approx(0.4)


def test_ranks_of_starts_are_uniform_over_what_the_model_says_of_series():
    """Regimes from the prior of a model, by its hazard: beliefs about their starts are right."""
    rng, hazard, steps = np.random.default_rng(0), 0.02, 60
    model = Gaussian(outlier_rate=0.0)
    known = StreamSettings(
        location=(0.0,), scale=(1.0,), hazard=hazard, max_hypotheses=steps, false_alarm_every=30
    )
    ranks = []
    for _ in range(300):
        ends = np.append(True, rng.random(steps - 1) < hazard)
        variance = 1 / rng.gamma(model.alpha, 1 / model.beta, steps)
        mean = rng.normal(size=steps) * np.sqrt(variance / model.kappa)
        starts = np.maximum.accumulate(np.where(ends, np.arange(steps), 0))
        y = rng.normal(mean[starts], np.sqrt(variance[starts]))
        for belief in follow(model, y, known, starts_from=0).starts[:1]:
            order = np.argsort(-belief.probability, kind="stable")
            held = belief.probability[order].cumsum()
            likely = belief.start[order[: np.searchsorted(held, 0.9) + 1]]
            assert (likely.min(), likely.max()) == (belief.earliest, belief.latest)
            assert held[len(likely) - 1] == pytest.approx(belief.coverage)
            if starts[belief.seq] >= belief.start.min():  # there was a change
                ranks.append(belief.rank(int(starts[belief.seq]), rng.random()))
    assert len(ranks) > 100
    assert stats.kstest(ranks, "uniform").pvalue > 0.1


class Own(Gaussian):
    """A model of one's own, which has no kernel."""


@pytest.mark.parametrize("steps", [0, 40])
def test_a_model_whose_numbers_are_not_finite_is_given_up(monkeypatch, steps):
    stepped, taken = Slab._eagerly, iter(range(10_000))

    def refused(self, *arguments):
        table, predicted = stepped(self, *arguments)
        table[:, OK_COLUMN] *= next(taken) < steps
        return table, predicted

    monkeypatch.setattr(Slab, "_eagerly", refused)
    rows = [[float(t)] for t in range(60)]
    if steps:
        with pytest.raises(Refused, match="not finite"):
            follow(Own(), rows)
    else:  # it never warms up
        assert np.isnan(follow(Own(), rows).changed).all()


def day(rng, n):
    return 1.2 * np.sin(2 * np.pi * np.arange(n) / 24) + 0.5 * rng.normal(size=n)


def rows(y):
    return y[:, None].tolist()


def test_forecasts_less_a_season_are_those_of_the_labels():
    y = day(np.random.default_rng(4), 450)
    y[::7] = np.nan
    plain = follow(Averaged(), rows(y), StreamSettings(seasonal=False), LEVELS)
    less = follow(Averaged(), rows(y), SEASONAL, LEVELS)
    np.testing.assert_array_equal(np.isnan(less.log_score[50:]), np.isnan(y[50:]))
    late = slice(200, None)
    there = ~np.isnan(y[late])
    assert np.abs(less.summary.mean[late, 0] - y[late])[there].mean() < 0.5
    ours, theirs = (np.nanmean(followed.log_score[late]) for followed in (less, plain))
    assert ours > theirs + 0.1
    low, _, high = less.summary.quantiles[late, :, 0].T
    assert 0.85 < ((low < y[late]) & (y[late] < high))[there].mean() < 0.95


def test_by_default_a_season_is_found_once_there_are_many_labels():
    rng = np.random.default_rng(8)
    y, walk = day(rng, 1100), rng.normal(size=999).cumsum()
    unsought = StreamSettings(seasonal=False)
    seasonal = follow(Gaussian(), rows(y), DEFAULTS, LEVELS)
    quiet = follow(Gaussian(), rows(walk), DEFAULTS, LEVELS)
    never = [follow(Gaussian(), rows(series), unsought, LEVELS) for series in (y, walk)]
    before, after = slice(20, 200), slice(200, None)
    ours, theirs = (followed.log_score for followed in (seasonal, never[0]))
    np.testing.assert_array_equal(ours[before], theirs[before])
    assert ours[after].mean() > theirs[after].mean() + 0.3
    assert tuple(seasonal.pipeline.series[0].season.periods) == (24,)
    np.testing.assert_array_equal(quiet.log_score, never[1].log_score)
    assert quiet.events == never[1].events
    short = follow(Gaussian(), rows(y), StreamSettings(history=60))
    assert short.pipeline.series[0].season is None  # no search looks back further than the history


def test_anomalies_are_rated_where_nothing_is_summed_up():
    y = np.random.default_rng(2).normal(size=1500)
    y[1400] = 40.0
    followed = follow(Gaussian(), rows(y))
    assert followed.anomaly[1400] >= DEFAULTS.anomaly_alarm
    assert followed.summary.numbers.size == 0
