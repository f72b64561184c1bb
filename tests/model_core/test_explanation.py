"""Explanations of changes against simulated changes."""

import math

import numpy as np
import pytest

from model_core import Detectors, explanation
from model_core.compiled import explaining
from model_core.explanation import AFTER, BEFORE, FEWEST, LEAST, explain, moments
from model_core.sentences import Explanation, sentence

KINDS = ("mean", "spread", "slope", "autocorrelation")


def autoregressive(rng, count, phi, start):
    values = []
    for _ in range(count):
        start = phi * start + rng.normal()
        values.append(start)
    return np.array(values)


def simulated(kind, rng, before, after, outliers=0):
    """Labels of both regimes: 2 sd, spread x2, a tenth of an sd per step, phi .2 -> .8."""
    y = rng.normal(size=before + after)
    sign = rng.choice([-1.0, 1.0])
    if kind == "mean":
        y[before:] += 2 * sign
    elif kind == "spread":
        y[before:] *= 2
    elif kind == "slope":
        y[before:] += 0.1 * sign * np.arange(1, after + 1)
    elif kind == "autocorrelation":
        y[:before] = autoregressive(rng, before, 0.2, rng.normal())
        y[before:] = autoregressive(rng, after, 0.8, y[before - 1])
    y[rng.integers(before + after, size=outliers)] += 8 * sign
    y = 100 + 0.5 * y
    return y[:before, None], y[before:, None]


def brute_force_evidence(labels, first, sizes, phi, ratio, chosen):
    """Log evidence of a regression with autoregressive noise; chosen: columns of the design.

    phi: before and after the change. ratio: of the spread of innovations after it.
    """
    time = np.arange(len(labels))
    later = np.maximum(time - first + 1, 0) / (len(labels) - first)
    columns = [10.0, time >= first, later, time / len(labels) - 0.5]
    sds = (1.0, *sizes)
    design = np.stack([sds[i] * columns[i] * np.ones(len(labels)) for i in chosen], 1)
    scale = np.where(time < first, 1.0, ratio)
    whiten = np.diag(1 / scale)
    whiten[time[1:], time[:-1]] = -np.where(time < first, *phi)[1:] / scale[1:]
    whiten[0, 0] = math.sqrt(1 - phi[0] ** 2)
    y = whiten @ labels
    cov = np.eye(len(labels)) + whiten @ design @ design.T @ whiten.T
    squares = y @ np.linalg.solve(cov, y)
    determinants = np.linalg.slogdet(whiten)[1] - 0.5 * np.linalg.slogdet(cov)[1]
    return determinants - (1 + len(labels) / 2) * math.log(0.5 + squares / 2)


def test_evidence_is_that_of_the_whole_covariance():
    rng = np.random.default_rng(1)
    labels = rng.normal(size=30).cumsum()
    grid = explanation._GRID
    sizes = 3.0, 6.0, 4.0
    steps, begin, end = explanation._BENT
    found = explaining.evidence(
        labels, 18, sizes, grid.factors, grid.log_scale, (steps, begin, end)
    )
    for point in (
        0,
        40,
        begin + 3,
        steps + 5,
        end + 2,
        end + 100,
        *rng.integers(0, 888, 20).tolist(),
    ):
        factors = grid.factors[:, point]
        phi = -factors[1], -factors[4] / factors[3]
        chosen = [0, *[1] * (point < steps), *[2] * (begin <= point < end)]
        for own, columns in zip(found, (chosen, [*chosen, 3]), strict=True):
            expected = brute_force_evidence(labels, 18, sizes, phi, factors[3] ** -0.5, columns)
            assert own[point] == pytest.approx(expected), point


def test_labels_far_off_are_found_by_the_medians_around_them():
    labels = np.random.default_rng(2).normal(size=40)
    labels[[0, 20, 39]] = 30.0, -40.0, 1e6
    padded = np.pad(labels, 2, "reflect")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), 1)
    usual = labels.copy()
    usual[[0, 20, 39]] = medians[[0, 20, 39]]
    assert explaining.without_outliers(labels).tolist() == usual.tolist()
    assert explaining.within_reach(labels).tolist() == np.delete(labels, [0, 20, 39]).tolist()
    assert explaining.without_outliers(labels[:9]).tolist() == labels[:9].tolist()
    mean, squares = explaining.spread(usual)
    assert (mean, squares) == pytest.approx((usual.mean(), 40 * usual.var()))
    assert explaining.mean_log(labels[1:9]) == pytest.approx(np.log(np.exp(labels[1:9]).mean()))


def test_a_spread_that_is_the_same_is_not_mentioned():
    """Its innovations may have another one, where labels are no longer autocorrelated."""
    for seed in (11, 51, 67, 89, 96):
        rng = np.random.default_rng(seed)
        before = np.zeros(120)
        for t in range(1, 120):
            before[t] = 0.9 * before[t - 1] + rng.normal() * np.sqrt(1 - 0.81)
        after = rng.normal(0, 1, 60) + 2.5
        text = explain(before[:, None], after[:, None]).text
        assert "spread" not in text, (seed, text)


@pytest.mark.parametrize(("before", "outliers"), [(200, 0), (200, 2), (60, 0)])
def test_four_of_five_changes_are_explained_as_they_were_made(before, outliers):
    rng = np.random.default_rng(0)
    matrix = {}
    for kind in (*KINDS, None):
        kinds = [explain(*simulated(kind, rng, before, 50, outliers)).kind for _ in range(60)]
        matrix[kind] = {other: kinds.count(other) / 60 for other in (*KINDS, None)}
    assert all(matrix[kind][kind] >= 0.8 for kind in KINDS), matrix
    assert matrix[None][None] >= 0.7


# Of changes by mean (sd), spread (factor) and slope (sd a step), the words that are right.
FAMILIES = {
    (2, 1, 0): {"mean"},
    (3, 1, 0): {"mean"},
    (4, 1, 0): {"mean"},
    (0, 2, 0): {"spread"},
    (0, 4, 0): {"spread"},
    (0, 1 / 4, 0): {"spread"},
    (0, 1, 0.1): {"slope"},
    (3, 1 / 4, 0): {"mean", "spread"},
    (3, 4, 0): {"mean", "spread"},
}


def words(text):
    """The parameters that a sentence names."""
    return {word for word in (*KINDS, "unclear") if word in text}


@pytest.mark.parametrize(
    ("after", "right", "wrong"),
    [
        (3, [0.35, 0.75, 0.85, 0.1, 0.5, 0.4, 0.0, 0.2, 0.2], 0.1),
        pytest.param(6, [0.8, 0.9, 0.9, 0.3, 0.9, 0.9, 0.0, 0.8, 0.2], 0.1, marks=pytest.mark.slow),
        (12, [0.9, 0.9, 0.9, 0.5, 0.9, 0.95, 0.0, 0.9, 0.5], 0.15),
        pytest.param(
            30, [0.95, 0.95, 0.95, 0.9, 0.95, 0.95, 0.9, 0.95, 0.85], 0.0, marks=pytest.mark.slow
        ),
        (100, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.0),
    ],
)
def test_the_sentence_names_what_changed(after, right, wrong):
    """right: least share of changes of which exactly that is named. wrong: most with none of it.

    Of few labels the sentence may name the mean or the spread; those of a slope are above the mean.
    """
    shares = []
    for (mean, spread, slope), changed in FAMILIES.items():
        rng = np.random.default_rng(1)
        said = []
        for _ in range(60):
            before = rng.normal(size=(200, 1))
            labels = spread * rng.normal(size=after) + slope * np.arange(1, after + 1)
            labels += mean * rng.choice([-1.0, 1.0])
            said.append(words(explain(before, labels[:, None]).text))
        fitting = {"unclear", *changed, *(["mean"] if slope else [])}
        unlike = sum(not names & fitting for names in said)
        shares.append((said.count(changed) / 60, unlike / 60))
    rights, wrongs = zip(*shares, strict=True)
    assert all(np.array(rights) >= right), rights
    assert max(wrongs) <= wrong, wrongs


def test_the_first_sentence_of_a_spread_that_quadrupled_is_of_the_spread():
    """At its confirmation, of two to five labels: what a notification says."""
    rng = np.random.default_rng(3)
    detectors = Detectors([str(i) for i in range(40)])
    said = []
    for i in range(40):
        labels = rng.normal(size=260)
        labels[200:] *= 4
        confirmed = [
            event
            for answer in detectors.update_many(i, labels)
            for event in answer.events
            if event.kind == "change" and event.state == "confirmed" and event.start > 190
        ]
        said.append([words(event.sentence) for event in (confirmed[0], confirmed[-1])])
    first, last = zip(*said, strict=True)
    assert sum("spread" in names for names in first) >= 32, first
    assert sum("spread" in names for names in last) >= 38, last


def drawn(case, rng, phi):
    """200 labels before a change and 100 after it, of levels and trends as metrics have them."""
    time = np.arange(300)
    noise = np.sqrt(1 - phi**2) * autoregressive(rng, 300, phi, rng.normal())
    sign = rng.choice([-1.0, 1.0])
    later = np.maximum(time - 199, 0)
    if case == "early":
        return noise + 5 * sign * (time >= 205), 200, sign
    if case == "rise":
        return noise + 10 * sign * np.minimum(later / 5, 1), 200, sign
    if case == "against a trend":
        return noise + sign * (0.05 * time - 3 * (time >= 200)), 200, -sign
    return noise + 0.5 * sign * np.minimum(time, 200), 200, -sign  # a rise that ends


@pytest.mark.parametrize(
    ("case", "kind", "right"),
    [
        ("early", "mean", (0.9, 0.9)),
        ("rise", "mean", (0.9, 0.9)),
        ("against a trend", "mean", (0.95, 0.9)),
        ("a rise that ends", "slope", (0.95, 0.95)),
    ],
)
def test_levels_that_take_a_while_and_trends_are_explained_as_they_are_seen(case, kind, right):
    """right: least share of sentences with that kind alone, in the right direction; by noise."""
    for phi, least in zip((0.0, 0.9), right, strict=True):
        rng = np.random.default_rng(11)
        fitting = 0
        for _ in range(60):
            labels, start, sign = drawn(case, rng, phi)
            found = explain(labels[:start, None], labels[start:, None])
            upwards = found.after is not None and (found.after > found.before) == (sign > 0)
            fitting += words(found.text) == {kind} and upwards
        assert fitting >= 60 * least, (phi, fitting)


def test_a_regime_with_two_levels_has_both_in_its_spread():
    """A sensor that rounds: most labels are the same but for jitter, the others are no outliers."""
    rng = np.random.default_rng(5)
    before = 76 + (rng.random((130, 1)) < 0.7) + 0.01 * rng.normal(size=(130, 1))
    found = explain(before, before[:60] - 3)
    assert found.text.startswith("mean fell by ")
    assert found.size == pytest.approx(-3 / 0.46, rel=0.1)


def test_a_mean_that_hardly_moved_is_not_named():
    rng = np.random.default_rng(3)
    for _ in range(100):
        found = explain(rng.normal(size=(200, 1)), 0.3 * rng.normal(size=(60, 1)) + 0.05)
        assert words(found.text) == {"spread"}, found.text


def test_a_large_change_of_one_parameter_is_none_of_another():
    rng = np.random.default_rng(7)

    def normal(count):
        return rng.normal(size=(count, 1))

    for step in (30, 1000):
        found = [explain(normal(200), step + normal(60)) for _ in range(20)]
        assert all(each.kind in ("mean", "slope") for each in found)
        assert sum("spread" not in each.text for each in found) >= 18
    for ratio in (30, 100, 0.01):
        found = [explain(normal(200), ratio * normal(60)) for _ in range(20)]
        assert sum(each.text.startswith("spread ×") for each in found) >= 18
        assert sum("mean" not in each.text for each in found) >= 18


def test_few_labels_after_a_step_are_no_slope():
    """At most in 5 of 100, where a step is as likely to have been one."""
    rng = np.random.default_rng(5)
    kinds = [
        explain(rng.normal(size=(60, 1)), rng.normal(size=(count, 1)) + 3.0).kind
        for count in (4, 7, 10, 14)
        for _ in range(50)
    ]
    assert kinds.count("slope") <= 10
    assert kinds.count("mean") >= 180


def test_where_only_a_correlation_breaks_no_output_is_named():
    rng = np.random.default_rng(1)
    shared = rng.normal(size=(200, 1))
    before = shared + 0.3 * rng.normal(size=(200, 3))
    after = before[:60].copy()
    after[:, 1] *= -1
    found = explain(before, after)
    assert (found.kind, found.output) == (None, None)
    assert found.text == "changed, no output clearly by itself"
    assert explain(before[:, 1:2], after[:, 1:2]).text == "changed, kind unclear"
    after[:, 1] += 3
    assert (explain(before, after).kind, explain(before, after).output) == ("mean", 1)


def test_constants_are_no_trouble_and_hide_no_change():
    rng = np.random.default_rng(10)
    before, after = rng.normal(size=(100, 2)), 4 + rng.normal(size=(50, 2))
    before[:, 0], after[:, 0] = 0.3, 0.1 + 0.2  # they differ by rounding
    found = explain(before, after)
    assert (found.kind, found.output) == ("mean", 1)
    assert explain(before[:, :1], after[:, :1]).kind is None
    two = np.full((30, 1), 2.0)
    found = explain(two, two + 1)
    assert (found.kind, found.before, found.after) == ("mean", 2.0, 3.0)
    assert explain(two, rng.normal(2, 1, (30, 1))).kind == "spread"
    assert explain(np.full((30, 1), 1e300), -1e300 * np.arange(30.0)[:, None]).kind is None


def test_rounding_of_a_constant_is_no_spread_and_zero_no_factor():
    constant = np.full((50, 1), 30.1)
    noisy = np.random.default_rng(0).normal(3, 1, (50, 1))
    assert explain(noisy, constant).text.endswith("; spread fell, 0.92 → 0.00")
    assert explain(constant, noisy).text.endswith("; spread rose, 0.00 → 0.92")
    assert explain(noisy, np.full((50, 1), 3.0)).text.endswith("spread fell, 0.92 → 0.00")
    counts = np.full((50, 1), 4.0)
    assert explain(counts, 0 * counts, "count").text == "rate fell, 4.0 → 0.0"


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_units_change_nothing(factor):
    before, after = simulated("mean", np.random.default_rng(1), 100, 50)
    plain = explain(before, after)
    other = explain(factor * before, factor * after)
    assert other.kind == plain.kind == "mean"
    assert other.probability == pytest.approx(plain.probability)
    assert other.after == pytest.approx(factor * plain.after)


def test_the_line_says_what_the_numbers_are():
    before = np.array([9.0, 11.0, 11.0, 9.0] * 10)[:, None]
    found = explain(before, before + 5)
    assert found.text == "mean rose by 4.9 sd, 10.0 → 15.0"
    assert (found.kind, found.before, found.after) == ("mean", 10.0, 15.0)
    assert found.size == pytest.approx(4.937, rel=1e-3)
    both = explain(before, 4 * (before - 10) + 30).text
    assert "mean rose" in both
    assert both.endswith(", 10 → 30; spread × 4.0, 1.0 → 4.1")


@pytest.mark.parametrize("seed", [662, 947, 1067, 1308])
def test_of_a_spread_nothing_is_said_that_all_labels_contradict(seed):
    """Equal spreads: of few labels, some taken for outliers, the others are close together."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(10, 30))
    found = explain(rng.normal(0, 1, (150, 1)), rng.normal(3, 1, (count, 1)))
    assert found.text.startswith("mean rose by ")
    assert "spread" not in found.text


def test_of_several_outputs_the_clearest_is_named():
    rng = np.random.default_rng(2)
    before, after = rng.normal(size=(100, 3)), rng.normal(size=(40, 3))
    after[:, 2] += 5
    after[3, 2] = before[7, 0] = math.nan
    found = explain(before, after)
    assert (found.kind, found.output) == ("mean", 2)
    assert found.text.startswith("output 3: ")
    # Of many, those that moved most are looked at.
    before, after = rng.normal(size=(100, 60)), rng.normal(size=(40, 60))
    after[:, 41] *= 3
    before[:, 7] = after[:, 7] = 1.0
    before[:, 8] = math.nan
    found = explain(before, after)
    assert (found.kind, found.output) == ("spread", 41)


@pytest.mark.parametrize("outputs", [8, 16])
def test_of_several_outputs_one_that_stands_still_is_named_unless_it_mostly_did(outputs):
    rng = np.random.default_rng(0)
    before = rng.normal(size=(200, outputs))
    after = rng.normal(size=(60, outputs))
    last = f"output {outputs}: "
    dead = after.copy()
    dead[:, -1] = 0.0
    assert explain(before, dead).text.startswith(last)
    assert explain(dead, before).text.startswith(last)
    still = before.copy()
    still[:, -1] = 5.0
    moved = after.copy()
    moved[:, -1] = 7.0
    assert explain(still, moved).text == f"{last}mean rose, 5.0 → 7.0"
    still[[20, 100, 150], -1] = 6.0
    moved[:, -1] = 5.0
    moved[:, 1] += 2.0
    assert explain(still, moved).text.startswith("output 2: mean rose")
    assert explain(moved, still).text.startswith("output 2: mean fell")


def test_counts_durations_and_classes_are_compared_by_rates_and_shares():
    rng = np.random.default_rng(3)
    for labels, kind, old, new in (
        ("count", "rate", rng.poisson(2, (90, 1)) * 1.0, rng.poisson(8, (40, 1)) * 1.0),
        ("positive", "mean", rng.exponential(5, (90, 1)), rng.exponential(1, (40, 1))),
    ):
        found = explain(old, new, labels)
        assert (found.kind, found.before, found.after) == (kind, old.mean(), new.mean())
        assert found.text.startswith(f"{kind} × ")
        assert found.size == pytest.approx(new.mean() / old.mean())
    first = rng.choice(3, (90, 1), p=[0.6, 0.3, 0.1]) * 1.0
    last = rng.choice(3, (40, 1), p=[0.1, 0.3, 0.6]) * 1.0
    classes = explain(first, last, "class")
    assert (classes.kind, classes.output in (0, 2)) == ("share", True)
    coin = explain(np.repeat([[0.0], [1.0]], [90, 10], 0), np.ones((20, 1)), "class")
    assert coin.text == "share of class 1 rose, 10 % → 100 %"
    # Counts of 0.5 against 0.9 are a change from 100 labels on, and not from ten.
    for labels, clear in ((10, False), (400, True)):
        old, new = (np.resize(each, (labels, 1)) for each in ([0.0, 1.0], [1.0, 0.8]))
        assert (explain(old, new, "count").kind is not None) == clear


@pytest.mark.parametrize("labels", ["real", "count", "positive", "class"])
def test_without_a_change_none_is_said(labels):
    same = np.array([0.0, 1.0, 2.0, 1.0] * 20)[:, None]
    found = explain(same, same, labels)
    assert found.kind is None
    assert 0.5 < found.probability <= 1
    zero = np.zeros((20, 1))
    assert explain(zero, zero, labels).kind is None


def test_few_labels_and_long_regimes():
    few = np.arange(float(FEWEST))[:, None]
    assert explain(few, np.arange(50.0)[:, None]) is not None
    assert explain(few, 90 + few[:LEAST]).text.endswith(" so far")
    assert explain(few, few[: LEAST - 1]) is None
    assert explain(few[1:], np.arange(50.0)[:, None]) is None
    assert explain(np.empty((0, 1)), few) is None
    long = np.random.default_rng(5).normal(size=(1000, 1))
    assert explain(long, long + 3) == explain(long[-BEFORE:], (long + 3)[:AFTER])
    with pytest.raises(ValueError, match="as many outputs"):
        explain(few, np.ones((3, 2)))


def test_moments_are_those_of_the_labels_that_are_there():
    found = moments(np.array([[1.0, math.nan], [3.0, 2.0]]))
    assert found == (2, [2.0, 2.0], [pytest.approx(math.sqrt(2)), None])


@pytest.mark.parametrize(
    ("direction", "size", "kind", "text"),
    [
        ("down", [1.0, None, -14.2], "change", "output 3: down by 14 sd so far"),
        ("down", [None, None], "change", "down so far"),
        ("up", [None, 4.04], "anomaly", "output 2: above the forecast by 4.0 sd"),
        ("up", None, "change", "up so far"),
        (None, None, "change", "changed"),
        ("up", 4.04, "anomaly", "above the forecast by 4.0 sd"),
        ("down", 0.057, "anomaly", "below the forecast by 0.057 sd"),
        (None, None, "anomaly", "unusual"),
    ],
)
def test_events_without_an_explanation_say_what_there_is(direction, size, kind, text):
    assert sentence(None, direction, size, kind) == text
    assert sentence(Explanation("mean rose"), direction, size, kind) == "mean rose"
