"""A small real HTTP stand-in of the service: enough REST for the client and the replay.

It detects a change where a label is far from the mean of its regime, and confirms it ten later. It
remembers idempotency keys and can be told to misbehave.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote, urlsplit

from tests.serving import Quiet, ThreadServer

FAR, CONFIRM_AFTER = 3.0, 10


class StandInStream:
    """Labels in regimes, and the events between them."""

    def __init__(self) -> None:
        self.seq, self.start, self.total, self.count = 0, 0, 0.0, 0
        self.events: list[dict] = []

    def belief(self) -> dict[int, float]:
        """Probability of each start of the present regime."""
        return {0: 1.0} if self.start == 0 else {self.start - 1: 0.25, self.start: 0.75}

    def observe(self, y: float | None, belief: bool) -> dict:
        """Apply one label; return its answer."""
        mean = self.total / self.count if self.count else 0.0
        if y is not None and self.count and abs(y - mean) > FAR:
            self.start, self.total, self.count = self.seq, 0.0, 0
        if y is not None:
            self.total, self.count = self.total + y, self.count + 1
        run_length: dict = {"map": self.seq - self.start, "mean": float(self.seq - self.start)}
        run_length |= {"hypotheses": len(self.belief()), "pruned_mass": 0.0}
        if belief:
            lengths = [self.seq - start for start in self.belief()]
            probability = list(self.belief().values())
            run_length["belief"] = {"run_length": lengths, "probability": probability}
        answer = {
            "seq": self.seq,
            "model": "gaussian",
            "predictive": {
                "mean": [mean],
                "variance": [[1.0]],
                "quantiles": {"0.05": [mean - 1.645], "0.5": [mean], "0.95": [mean + 1.645]},
            },
            "log_score": None if y is None else -1.0,
            "changed_probability": 0.9 if self.start else 0.0,
            "changepoint_probability": 0.01 if self.seq else None,
            "recent_change_probability": 0.05,
            "run_length": run_length,
            "duplicate": False,
            "warming_up": False,
            "event": self._event(),
        }
        self.seq += 1
        return answer

    def _event(self) -> dict | None:
        if self.start == 0 or self.seq - self.start != CONFIRM_AFTER:
            return None
        event = {"id": len(self.events) + 1, "state": "confirmed", "start": self.start}
        event |= {"suspected_at": self.start + 2, "confirmed_at": self.seq, "delay": 2}
        self.events.append({**event, "probability": 0.75, "direction": "down", "size": -1.9})
        return self.events[-1]


class StandIn(ThreadServer):
    """The stand-in service and what it saw."""

    def __init__(self) -> None:
        self.streams: dict[str, StandInStream] = {}
        self.settings: dict[str, dict] = {}
        self.remembered: dict[str, list[dict]] = {}
        self.requests: list[tuple[str, str]] = []
        self.lose_answers = 0  # apply this many posted lists, then cut the connection
        self.refusals: list[int] = []  # statuses that are answered before anything else
        self.bodies: list[list[dict]] = []
        self.hindsight: Iterator[dict] = iter(())  # of the next answers about changepoints
        super().__init__(Handler)


class Handler(Quiet):
    """Routes of the stand-in."""

    server: StandIn

    def _answer(self, status: int, body: object) -> None:
        self.answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _handle(self) -> None:
        content = self.body()
        body = json.loads(content) if content else None
        url = urlsplit(self.path)
        self.server.requests.append((self.command, url.path))
        if self.server.refusals:
            self._answer(self.server.refusals.pop(0), {"title": "busy", "detail": "try again"})
            return
        if url.path == "/readyz":
            self._answer(200, {"ready": True})
            return
        name, *rest = [unquote(part) for part in url.path.split("/")[3:]]
        if not rest:
            self._stream(name, body)
        elif rest[0] == "observations":
            self._observe(name, body, "belief" in parse_qs(url.query))
        elif name not in self.server.streams:
            self._missing(name)
        else:
            self._read(name, rest[0])

    do_GET = do_PUT = do_POST = do_DELETE = _handle

    def _read(self, name: str, part: str) -> None:
        stream = self.server.streams[name]
        found = {"stream": name, "seq": stream.seq, "model": "gaussian"}
        if part == "changepoints":
            starts = [0, *(event["start"] for event in stream.events)]
            ends = [*starts[1:], stream.seq]
            found["segmentation"] = [
                {"start": s, "end": e} for s, e in zip(starts, ends, strict=True)
            ]
            found |= {"events": stream.events, "hindsight": next(self.server.hindsight, None)}
        else:
            found["belief"] = [
                {"run_length": stream.seq - 1 - s, "start": s, "probability": p}
                for s, p in stream.belief().items()
            ]
        self._answer(200, found)

    def _missing(self, name: str) -> None:
        problem = {"title": "Unknown stream", "status": 404, "detail": f"no stream {name!r}"}
        self._answer(404, problem)

    def _stream(self, name: str, body: object) -> None:
        if self.command == "PUT":
            assert isinstance(body, dict)
            self.server.settings[name] = body
            self.server.streams.setdefault(name, StandInStream())
        if name not in self.server.streams:
            self._missing(name)
            return
        stream = self.server.streams[name]
        if self.command == "DELETE":
            del self.server.streams[name]
        state = {"stream": name, "model": "gaussian", "seq": stream.seq, "settings": {}}
        self._answer(200, state)

    def _observe(self, name: str, body: object, belief: bool) -> None:
        key = self.headers.get("Idempotency-Key", "")
        stream = self.server.streams.setdefault(name, StandInStream())
        rows = body if isinstance(body, list) else [body]
        if key not in self.server.remembered:
            self.server.bodies.append(rows)
            times = [{"time": row["time"]} if "time" in row else {} for row in rows]
            answers = [
                {"stream": name, **stream.observe(row["y"], belief), **time}
                for row, time in zip(rows, times, strict=True)
            ]
            self.server.remembered[key] = [{**a, "duplicate": True} for a in answers]
        else:
            answers = self.server.remembered[key]
        if self.server.lose_answers:
            self.server.lose_answers -= 1
            self.close_connection = True
            return
        self._answer(200, answers if isinstance(body, list) else answers[0])
