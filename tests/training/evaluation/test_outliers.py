"""The outlier study, in small."""

from functools import partial
from io import StringIO

import pytest
from rich.console import Console

from model_core.defaults import Defaults
from model_core.events import Event
from training.evaluation import outliers
from training.evaluation.online import Followed, Settings


def test_alarms_are_counted_when_they_go_off():
    one, two = Event(1, "suspected", 5, 7), Event(2, "suspected", 20, 21)
    events = [
        (7, one), (8, one._replace(start=6)), (17, one._replace(state="confirmed")),
        (21, two), (23, two._replace(state="withdrawn")),
    ]  # fmt: skip
    changed = [0.1, 0.95, 0.99, 0.2, 0.91]
    found = outliers.alarms(Followed(events, changed))
    assert list(found.values()) == [[7, 21], [17], [1, 4]]


IN_TIME = Defaults(confirm_probability=None, confirm_after=10)


# By default a doubtful change stays unconfirmed, and may cross .9 several times.
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("defaults", "crossings", "delay"), [(IN_TIME, 1.0, 18), (Defaults(), 1.5, 9)]
)
@pytest.mark.parametrize("model", ["averaged", "gaussian"])
def test_outliers_hardly_ever_alarm_and_shifts_do(monkeypatch, model, defaults, crossings, delay):
    monkeypatch.setattr(outliers, "Settings", partial(Settings, defaults))
    for name, value in {
        "QUIET_STREAMS": 8, "QUIET_LENGTH": 500, "SHIFT_STREAMS": 20, "SHIFT_AT": 100,
        "SHIFT_LENGTH": 160, "SHIFTS": (2.0, 3.0),
    }.items():  # fmt: skip
        monkeypatch.setattr(outliers, name, value)
    text = StringIO()
    console = Console(file=text, width=120)
    found = outliers.report(model, hazard=1 / 250, seed=0, console=console)
    suspected, confirmed, high = found.false_per_1000.values()
    assert suspected <= 2.5
    assert confirmed <= 0.5
    assert high <= crossings
    assert all(each <= 8 for each in found.delay["suspected"])
    assert all(each <= delay for each in found.delay["confirmed"])
    assert "changed_probability > 0.9" in text.getvalue()
