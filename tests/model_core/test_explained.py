"""What changed at an event: of which labels, and when it is looked at."""

import math

import numpy as np
import pytest

from model_core import Detector
from model_core.explanation import explain, explained
from model_core.sentences import BY_INPUTS
from model_core.stream.events import Event
from model_core.stream.state import SeenLabels
from model_core.upm.builtin import Options, build

COUNT = 400


def seen_from(first):
    """Labels first to COUNT: a missing label at every ninth, a season, times and none."""
    seqs = np.arange(first, COUNT)
    y = np.array([[math.nan] * 2 if seq % 9 == 0 else [seq, math.nan] for seq in seqs])
    offset = np.where(seqs % 2, 0.5, 0.0)[:, None]
    return SeenLabels(y, offset, lambda at: moment(seqs[at]))


def moment(seq):
    return (f"t{seq}", None) if seq % 2 else (None, seq)


def labels(seqs):
    return np.array([[seq - 0.5 * (seq % 2), math.nan] for seq in seqs if seq % 9])


@pytest.mark.parametrize(
    ("start", "previous", "until", "history", "first", "before", "after"),
    [
        (300, 0, 400, 1000, 50, (100, 300), (300, 400)),
        (300, 290, 400, 1000, 50, (290, 300), (300, 400)),  # since the change before it
        (201, 0, 320, 1000, 0, (1, 201), (201, 301)),
        (250, 0, 320, 1000, 0, (50, 250), (250, 320)),  # to the next change
        (40, 0, 400, 1000, 0, (0, 40), (40, 140)),
        (300, 0, 400, 120, 0, (280, 300), (300, 400)),  # what is sure to be retained
        (300, 0, 400, 1000, 290, (290, 300), (300, 400)),
    ],
)
def test_the_labels_on_both_sides(start, previous, until, history, first, before, after):
    event = Event(1, "confirmed", start, start, previous=previous)
    model = build("gaussian", Options(y_dim=2))
    made = explained(event, model, seen_from(first), COUNT, until, history)
    left, right = labels(range(*before)), labels(range(*after))
    assert (made.before.count, made.after.count) == (len(left), len(right))
    assert made.before.mean == [pytest.approx(left[:, 0].mean()), None]
    assert made.after.sd == [pytest.approx(right[:, 0].std(ddof=1)), None]
    assert made.explanation == explain(left, right)
    timed = start % 2
    assert (made.start_time, made.start_ms) == ((f"t{start}", None) if timed else (None, start))
    assert made.sentence == made.explanation.text


def test_what_is_not_retained_is_not_explained_and_an_earlier_word_is_taken_back():
    model = build("gaussian", Options(y_dim=2))
    event = Event(1, "confirmed", 300, 300, direction="up", size=2.0)
    event = explained(event, model, seen_from(0), COUNT, COUNT, 1000)
    gone = explained(event, model, seen_from(301), COUNT, COUNT, 1000)
    assert (gone.before, gone.after, gone.explanation, gone.start_ms) == (None,) * 4
    assert gone.sentence == "up by 2.0 sd so far"


def test_labels_that_depend_on_inputs_and_classes():
    event = Event(1, "confirmed", 300, 300)
    linear = build("linear", Options(y_dim=2, x_dim=1))
    made = explained(event, linear, seen_from(0), COUNT, COUNT, 1000)
    assert (made.sentence, made.explanation.kind, made.after.count) == (BY_INPUTS, None, 89)
    classes = build("categorical", Options(classes=500))
    seen = seen_from(0)
    made = explained(event, classes, seen._replace(y=seen.y[:, :1]), COUNT, COUNT, 1000)
    assert (made.before.mean, made.before.sd) == (None, None)
    assert made.explanation.text.startswith("share of class ")


def test_a_confirmed_change_is_looked_at_again_until_all_is_there():
    """A spread that quadrupled: right after the alarm there are two labels."""
    rng = np.random.default_rng(0)
    detector = Detector("gaussian")
    answers = detector.update_many(np.concatenate([rng.normal(size=300), 4 * rng.normal(size=99)]))
    told = [event for answer in answers for event in answer.events if event.start > 290]
    answers = detector.update_many(4 * rng.normal(size=60))
    told += [event for answer in answers for event in answer.events if event.start > 290]
    confirmed = [event for event in told if event.state == "confirmed"]
    first, last = confirmed[0], confirmed[-1]
    assert (first.refined_at, first.news, last.news) == (None, True, False)
    looked_at = {None, last.confirmed_at + 10, last.start + 99}
    assert {event.refined_at for event in confirmed} == looked_at
    assert last.sentence.startswith("spread × ")
    assert 3 < last.explanation.size < 5
    assert last.after.count == 100
    assert last.evidence >= 10_000
    assert detector.events[-1] == last


def test_labels_that_a_suspicion_hid_are_looked_at_once_it_is_withdrawn():
    rng = np.random.default_rng(67)
    detector = Detector(false_alarm_every=1000)
    hidden = False
    for label in [*rng.normal(0, 1, 60), *rng.normal(0, 5, 75)]:
        detector.update(label)
        confirmed = [event for event in detector.events if event.state == "confirmed"]
        suspected = any(event.state == "suspected" for event in detector.events)
        if not confirmed:
            continue
        last = confirmed[-1]
        whole = max(last.confirmed_at, last.refined_at or 0) + 1 - last.start
        hidden = hidden or (suspected and last.after.count < whole)
        assert suspected or last.after.count == whole
    assert hidden
    assert not last.sentence.endswith("so far")
