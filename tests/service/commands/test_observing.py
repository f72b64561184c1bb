"""`moca changes`: pages until the limit, times in UTC, a warning for what cannot be read."""

from contextlib import nullcontext

import pytest

from moca_client.responses import ChangesPage, StreamChange
from service.commands import connection, observing

TIMES = ("2024-05-01T01:30:00.25+02:00", "2024-05-01T01:30:00Z", "9999-12-31T23:59:59-12:00")
SHOWN = ("2024-04-30 23:30", "2024-05-01 01:30", TIMES[2])


class PagedChanges:
    """Answers with a change in each page; `damaged`: streams of the second that it leaves out."""

    def __init__(self, damaged=()):
        self.damaged, self.calls = list(damaged), 0

    def call(self, call):
        place = self.calls
        self.calls += 1
        change = StreamChange(
            stream=f"s{place}",
            id=1,
            state="suspected",
            start=3,
            suspected_at=5,
            suspected_time=TIMES[place],
            start_time=TIMES[place],
        )
        cursor = None if place == 2 else str(place)
        damaged = self.damaged if place == 1 else []
        return ChangesPage([change], total=3, streams=3, cursor=cursor, unreadable=damaged)


@pytest.fixture
def listed(moca, monkeypatch):
    def listed(service, *arguments, **env):
        monkeypatch.setattr(connection, "connected", lambda *_: nullcontext(service))
        monkeypatch.setattr(observing, "on_terminal", lambda: True)
        result = moca("changes", *arguments, **env)
        assert result.exit_code == 0, result.output
        return result

    return listed


def test_a_row_fits_80_columns_and_only_words_are_wrapped(listed):
    shown = listed(PagedChanges(), COLUMNS="80", TERMINAL_WIDTH="80").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    for text in (SHOWN[0], "suspected", "what changed"):
        assert text in shown


def test_times_are_utc_and_no_more_pages_are_read_than_the_limit_needs(listed):
    shown = listed(PagedChanges()).stdout
    assert "since (UTC)" in shown
    for i, time in enumerate(SHOWN):
        (line,) = [line for line in shown.splitlines() if line.split()[:1] == [f"s{i}"]]
        assert f" {time} " in line
    service = PagedChanges()
    assert listed(service, "--csv", "--limit", "2").stdout.count("\n") == 3
    assert service.calls == 2


def test_what_cannot_be_read_is_told(listed):
    answer = listed(PagedChanges(["b", "a"]), "--csv")
    assert "cannot read the state or history of a, b" in answer.stderr
    assert "cannot read" not in answer.stdout
    assert listed(PagedChanges()).stderr == ""
