"""A small real HTTP stand-in of the service: enough REST for the client and the replay.

Its numbers come from a plain known-variance Bayesian changepoint filter, so pictures made from
them look like pictures. It remembers idempotency keys and can be told to misbehave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.serving import ThreadServer

HAZARD = 1 / 100
Z90 = 1.645


class StandInStream:
    """Filter N(mean, noise) with mean ~ N(location, (3 noise_sd)^2), confirm after 10."""

    def __init__(self, location: float, noise_sd: float):
        self.location, self.noise = location, noise_sd**2
        self.prior_precision = 1 / (9 * self.noise)
        self.seq = 0
        self.belief = {0: 1.0}  # start -> probability
        self.sums = {0: (0, 0.0)}  # start -> count, sum
        self.confirmed_start = 0
        self.candidate = (0, 0)  # start, since
        self.events: list[dict] = []

    def _predictive(self, start: int) -> tuple[float, float]:
        count, total = self.sums[start]
        precision = self.prior_precision + count / self.noise
        mean = (self.prior_precision * self.location + total / self.noise) / precision
        return mean, self.noise + 1 / precision

    def observe(self, y: float | None, belief: bool) -> dict:
        """Apply one label; return its answer."""
        if self.seq > 0:
            self.belief = {s: p * (1 - HAZARD) for s, p in self.belief.items()}
            self.belief[self.seq] = HAZARD
            self.sums[self.seq] = (0, 0.0)
        said = {s: self._predictive(s) for s in self.belief}
        mean = sum(p * said[s][0] for s, p in self.belief.items())
        variance = sum(p * (said[s][1] + said[s][0] ** 2) for s, p in self.belief.items())
        variance -= mean**2
        sd = math.sqrt(variance)
        log_score = None
        if y is not None:
            log_score = self._update(y, said)
        answer = {
            "seq": self.seq,
            "model": "gaussian@1",
            "predictive": {
                "mean": [mean],
                "variance": [[variance]],
                "quantiles": {"0.05": [mean - Z90 * sd], "0.5": [mean], "0.95": [mean + Z90 * sd]},
            },
            "log_score": log_score,
            "changed_probability": sum(
                p for s, p in self.belief.items() if s > self.confirmed_start
            ),
            "changepoint_probability": self.belief.get(self.seq) if self.seq else None,
            "recent_change_probability": sum(p for s, p in self.belief.items() if self.seq - s < 5),
            "run_length": self._summary(belief),
            "duplicate": False,
            "warming_up": False,
        }
        answer["event"] = self._event()
        self.seq += 1
        return answer

    def _update(self, y: float, said: dict[int, tuple[float, float]]) -> float:
        joint = {
            s: p * math.exp(-((y - said[s][0]) ** 2) / 2 / said[s][1]) / math.sqrt(said[s][1])
            for s, p in self.belief.items()
        }
        evidence = sum(joint.values())
        kept = sorted(joint, key=joint.__getitem__, reverse=True)[:50]
        total = sum(joint[s] for s in kept)
        self.belief = {s: joint[s] / total for s in sorted(kept)}
        self.sums = {s: (self.sums[s][0] + 1, self.sums[s][1] + y) for s in self.belief}
        return math.log(evidence / math.sqrt(2 * math.pi))

    def _summary(self, belief: bool) -> dict:
        best = max(self.belief, key=self.belief.__getitem__)
        summary: dict = {
            "map": self.seq - best,
            "mean": sum(p * (self.seq - s) for s, p in self.belief.items()),
            "hypotheses": len(self.belief),
            "pruned_mass": 0.0,
        }
        if belief:
            summary["belief"] = {
                "run_length": [self.seq - s for s in self.belief],
                "probability": list(self.belief.values()),
            }
        return summary

    def _event(self) -> dict | None:
        best = max(self.belief, key=self.belief.__getitem__)
        if best != self.candidate[0]:
            self.candidate = (best, self.seq)
        start, since = self.candidate
        if start <= self.confirmed_start or self.seq - since < 10:
            return None
        self.confirmed_start = start
        event = {
            "id": len(self.events) + 1,
            "state": "confirmed",
            "start": start,
            "suspected_at": since,
            "confirmed_at": self.seq,
            "delay": since - start,
            "probability": self.belief[start],
            "direction": "down",
            "size": -1.9,
        }
        self.events.append(event)
        return event


class StandIn(ThreadServer):
    """The stand-in service and what it saw."""

    def __init__(self) -> None:
        self.streams: dict[str, StandInStream] = {}
        self.settings: dict[str, dict] = {}
        self.remembered: dict[str, list[dict]] = {}
        self.requests: list[tuple[str, str]] = []
        self.lose_answers = 0  # apply this many posted lists, then cut the connection
        self.refusals: list[tuple[int, dict[str, str]]] = []  # answered before anything else
        self.bodies: list[list[dict]] = []
        self.hindsight: Iterator[dict] = iter(())  # of the next answers about changepoints
        super().__init__(Handler)


class Handler(BaseHTTPRequestHandler):
    """Routes of the stand-in."""

    server: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""

    def _answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> object:
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        return json.loads(content) if content else None

    def _handle(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        self.server.requests.append((self.command, url.path))
        if self.server.refusals:
            status, headers = self.server.refusals.pop(0)
            self._answer(status, {"title": "busy", "detail": "try again"}, headers)
            return
        if url.path == "/readyz":
            self._answer(200, {"ready": True})
            return
        parts = [unquote(part) for part in url.path.split("/")[3:]]
        if not parts:
            names = [{"stream": name} for name in sorted(self.server.streams)]
            self._answer(200, {"streams": names, "cursor": None})
        elif len(parts) == 1:
            self._stream(parts[0], body)
        elif parts[1] == "observations":
            self._observe(parts[0], body, "belief" in parse_qs(url.query))
        elif parts[0] not in self.server.streams:
            self._missing(parts[0])
        elif parts[1] == "changepoints":
            stream = self.server.streams[parts[0]]
            starts = [0, *(event["start"] for event in stream.events)]
            ends = [*starts[1:], stream.seq]
            segments = [{"start": s, "end": e} for s, e in zip(starts, ends, strict=True)]
            said = {"stream": parts[0], "seq": stream.seq, "model": "gaussian@1"}
            said["hindsight"] = next(self.server.hindsight, None)
            self._answer(200, {**said, "events": stream.events, "segmentation": segments})
        else:
            belief = self.server.streams[parts[0]].belief
            seq = self.server.streams[parts[0]].seq - 1
            rows = [
                {"run_length": seq - s, "start": s, "probability": p} for s, p in belief.items()
            ]
            self._answer(
                200, {"stream": parts[0], "seq": seq, "model": "gaussian@1", "belief": rows}
            )

    do_GET = do_PUT = do_POST = do_DELETE = _handle

    def _missing(self, name: str) -> None:
        problem = {"title": "Unknown stream", "status": 404, "detail": f"no stream {name!r}"}
        self._answer(404, problem)

    def _stream(self, name: str, body: object) -> None:
        if self.command == "PUT":
            assert isinstance(body, dict)
            self.server.settings[name] = body
            location, scale = body.get("location", 0.0), body.get("scale", 1.0)
            self.server.streams.setdefault(name, StandInStream(location, scale))
        if name not in self.server.streams:
            self._missing(name)
            return
        stream = self.server.streams[name]
        if self.command == "DELETE":
            del self.server.streams[name]
        state = {"stream": name, "model": "gaussian@1", "seq": stream.seq, "settings": {}}
        self._answer(200, state)

    def _observe(self, name: str, body: object, belief: bool) -> None:
        key = self.headers.get("Idempotency-Key", "")
        stream = self.server.streams.setdefault(name, StandInStream(0.0, 1.0))
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


@pytest.fixture
def standin() -> Iterator[StandIn]:
    """Run a stand-in on a free port."""
    with StandIn() as server:
        yield server
