"""A stand-in for the service: the console's own files, and answers that a service gave once.

`python -m tests.e2e.console.fake URL` records the answers anew from a running service.
"""

import json
import queue
import random
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import fastapi_offline
import httpx
from msgspec import to_builtins

from service.api.routes.files import streams_in
from service.console.assets import SAFETY, ConsoleFiles, page
from service.problems import ServiceError
from tests.serving import Quiet, ThreadServer
from tests.waiting import until

FLEET_S = 11.0  # that tags and paces of all streams are kept
FILE = Path(__file__).with_name("answers.json")
REFERENCE = Path(fastapi_offline.__file__).with_name("static")
OPENAPI = {
    "openapi": "3.1.0",
    "info": {"title": "MOCA service", "version": "1", "description": "Post one observation."},
    "paths": {
        "/v1/streams": {"get": {"summary": "List ids", "responses": {"200": {"description": "-"}}}}
    },
}
PUMP = {
    "model": "gaussian",
    "location": 10.0,
    "scale": 1.0,
    "hazard": 0.02,
    "max_hypotheses": 8,
    "anomaly_alarm": 0.95,
}


def observations():
    """Streams with their settings and observations; each is of a kind that is drawn its own way."""
    rng = random.Random(3)
    level = [10.0] * 20 + [18.0] + [10.0] * 19 + [14.0] * 20  # an anomaly at 20, a change at 40
    pump = [
        {"y": round(y + rng.gauss(0, 0.5), 2), "time": f"{1900 + i}-01-01T00:00:00Z"}
        for i, y in enumerate(level)
    ]
    steady = [{"y": float(i % 5)} for i in range(24)]
    vectors = [{"y": [float(i % 5), float(i % 3)]} for i in range(24)]
    waits = [*({"x": [i % 7 / 7], "y": i % 7 + i % 2 / 9} for i in range(23)), {"x": [1.0]}]
    waits[-1]["pending"] = True
    return {
        "pump": (PUMP, pump),
        "bits": ({"model": "bernoulli"}, [{"y": i % 2} for i in range(24)]),
        "empty": ({}, []),
        "forgetful": ({"model": "gaussian", "history": 0}, steady),
        "millions": (
            {"model": "gaussian", "location": 1e6, "scale": 0.2},
            [{"y": 1_000_000 + (1 + 2 * (i % 2)) / 10} for i in range(24)],
        ),
        "several": ({"model": "gaussian", "max_hypotheses": 8}, vectors),
        "waits": ({"model": "linear", "max_hypotheses": 8}, waits),
    }


def together():
    """Streams of one site whose level rises in the same minute, and one of another site."""
    rng = random.Random(4)
    rows = {}
    for name in ("north.flow", "north.heat", "north.load", "north.rate", "south.flow"):
        up = 8.0 if name.startswith("north") else 0.0
        rows[name] = [
            {"y": round(10 + up * (i >= 40) + rng.gauss(0, 1), 2), "time": at.isoformat()}
            for i in range(60)
            for at in [datetime(2024, 5, 1, 10, tzinfo=UTC) + timedelta(minutes=i)]
        ]
    return rows


SHOWN = {"kind": "all", "state": ["confirmed", "suspected", "withdrawn"]}


def record(url):
    """Post the observations to a service; returns its answers to what the console asks."""
    answers = {}
    with httpx.Client(base_url=url, timeout=120) as client:

        def keep(method, path, body=None, **query):
            response = client.request(method, path, json=body, params=query)
            assert response.is_success, response.text
            answers[f"{method} {path}"] = short(response.json())
            return response.json()

        for name, (settings, seen) in observations().items():
            path = f"/v1/streams/{name}"
            client.put(path, json=settings).raise_for_status()
            if seen:
                client.post(f"{path}/observations", json=seen).raise_for_status()
            keep("GET", path)
            keep("GET", f"{path}/history", start=0, limit=1000, detail="full")
            until(
                lambda path=path: (
                    keep("GET", f"{path}/changepoints", **SHOWN)["hindsight"]["status"] != "pending"
                )
            )
            keep("GET", f"{path}/run-length")
            if seen and settings.get("history") != 0:
                keep("POST", f"{path}/what-if", {"beliefs": 100, "series": True})
            if seen and name != "waits":  # which has inputs
                keep("POST", f"{path}/predictions", {"quantiles": [0.05, 0.5, 0.95]})
        body = {"settings": {"hazard": 0.2}, "beliefs": 100, "series": True}
        answers["what-if"] = short(client.post("/v1/streams/pump/what-if", json=body).json())
        keep("GET", "/v1/overview", limit=25, labels=40)
        keep("GET", "/v1/changes", limit=25, around=60)
        keep("GET", "/v1/incidents", limit=5)
        keep("GET", "/v1/models")
        keep("GET", "/v1/models/regimes")
        keep("GET", "/v1/models/gaussian")
        keep("GET", "/v1/models/averaged")
        live = "/v1/streams/pump/observations/live?state=true&detail=full"
        answers |= messages(client, live, "state", "observation", after="58")
        answers |= messages(client, "/v1/events?prefix=pump&kind=all", "changepoint", after="0")
        answers["unknown"] = client.get("/v1/streams/nobody").json()
        window = {"start": "2024-05-04T22:00", "end": "2024-05-05T02:00", "match": ['{job="db"}']}
        window |= {"repeat": "FREQ=DAILY", "note": "of databases"}
        client.put("/v1/calendar/backups", json=window).raise_for_status()
        keep("GET", "/v1/calendar")
        (event,) = changes(answers["GET /v1/streams/pump/changepoints"])
        for name, excluded in (("excluded", True), ("included", False)):
            body = {"event": event["id"], "excluded": excluded}
            client.post("/v1/streams/pump/exclusions", json=body).raise_for_status()
            listed = client.get("/v1/streams/pump/changepoints", params=SHOWN).json()
            answers[name] = short(listed)
        judged = client.put(f"/v1/streams/pump/changepoints/{event['id']}", json={"change": False})
        answers["verdict"] = short(judged.json())
        answers["judged"] = short(client.get("/v1/streams/pump/changepoints", params=SHOWN).json())
        for name, seen in together().items():
            settings = {"model": "gaussian", "location": 10.0, "scale": 1.0}
            settings["tags"] = {"site": name.partition(".")[0]}
            client.put(f"/v1/streams/{name}", json=settings).raise_for_status()
            client.post(f"/v1/streams/{name}/observations", json=seen).raise_for_status()
        time.sleep(FLEET_S)
        answers["incidents"] = short(client.get("/v1/incidents", params={"limit": 5}).json())
        place = f"/v1/incidents/{answers['incidents']['incidents'][0]['id']}"
        answers["incident"] = short(client.get(place, params={"around": 60}).json())
    return answers


def messages(client, path, *kinds, after):
    """The first message of each kind."""
    found, kind = {}, ""
    with client.stream("GET", path, params={**parse_qs(urlsplit(path).query), "after": after}) as s:
        for line in s.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: ") and kind in kinds:
                found.setdefault(kind, short(json.loads(line.removeprefix("data: "))))
                if len(found) == len(kinds):
                    return found
    raise AssertionError(found.keys())


def changes(answer):
    return [e for e in answer["events"] if e["kind"] == "change" and e["state"] == "confirmed"]


def short(value):
    """Numbers to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < 1e5 else value
    if isinstance(value, list):
        return [short(each) for each in value]
    if isinstance(value, dict):
        return {name: short(each) for name, each in value.items()}
    return value


class FakeApi(ThreadServer):
    """Answers by method and path; `answers` may be changed, to a value or to a function.

    A function takes the query and the body; one that returns an int refuses with that status.
    """

    def __init__(self):
        self.answers = json.loads(FILE.read_text())
        self.requests = []  # method, path, query, body
        self.key = None  # that each call has to have
        self.away = False
        self.cursors = []  # Last-Event-ID of each connection that follows something
        self._following = []
        self._lock = threading.Lock()
        self.answers["GET /v1/overview"] = self._overview(self.answers["GET /v1/overview"])
        self.answers["GET /openapi.json"] = OPENAPI
        self.answers["GET /v1/changes"] = self._changes(self.answers["GET /v1/changes"])
        self.answers["GET /v1/streams"] = lambda query, _: {
            "streams": [{"stream": name} for name in observations() if name == query["prefix"]]
        }
        self.answers["POST /v1/files"] = lambda query, body: to_builtins(
            streams_in(body, query["name"])
        )
        super().__init__(_Handler)

    @staticmethod
    def _changes(page):
        def found(query, _):
            states = query.get("state", ["confirmed", "suspected", "withdrawn"])
            rows = [row for row in page["changes"] if row["state"] in states]
            streams = len({row["stream"] for row in rows})
            shown = rows[: int(query["limit"])]
            return {**page, "changes": shown, "total": len(rows), "streams": streams}

        return found

    def show_incident(self):
        """Answer with an incident, of other streams than those that are listed."""
        self.answers["GET /v1/incidents"] = self.answers["incidents"]
        incident = self.answers["incident"]
        self.answers[f"GET /v1/incidents/{incident['id']}"] = incident
        return incident

    @staticmethod
    def _overview(page):
        def found(query, _):
            def fits(row):
                stream = row["stream"]
                return stream.startswith(query.get("prefix", "")) and (
                    query.get("contains", "") in stream
                )

            rows = [row for row in page["streams"] if fits(row)]
            return {**page, "streams": rows, "total": len(rows)}

        return found

    def asked(self, method, path):
        """Queries and bodies of all calls of a kind."""
        return [
            (query, body) for m, p, query, body in list(self.requests) if (m, p) == (method, path)
        ]

    def send(self, kind, data, id_):
        """Send a message to all who follow something."""
        text = f"id: {id_}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
        with self._lock:
            for each in self._following:
                each.put(text)

    def end(self):
        """End all connections that follow something."""
        with self._lock:
            for each in self._following:
                each.put(None)

    def stop(self):
        self.end()
        super().stop()

    def handle_error(self, request, client_address):
        """Say nothing of a browser that left before its answer."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def followed(self, cursor):
        """Follow from now on, before any text is taken: the browser may say so at once."""
        texts = queue.Queue()
        with self._lock:
            self._following.append(texts)
            self.cursors.append(cursor)
        return self._texts(texts)

    def _texts(self, texts):
        yield ": hello\n\n"
        while (text := texts.get()) is not None:
            yield text
        with self._lock:
            self._following.remove(texts)


class _Handler(Quiet):
    def _handle(self):
        method, url = self.command, urlsplit(self.path)
        path = unquote(url.path)
        if self.server.away:
            self.close_connection = True
            return
        if method == "GET" and path == "/":
            self.answer(200, page().encode(), {"Content-Type": "text/html", **SAFETY})
            return
        file = Path(ConsoleFiles().lookup_path(path.removeprefix("/console/"))[0])
        if method == "GET" and path.startswith("/console/") and file.is_file():
            kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
            headers = {"Content-Type": kind[file.suffix], **SAFETY}
            self.answer(200, file.read_bytes(), headers)
            return
        if method == "GET" and path.startswith("/docs/static/"):
            kind = {".js": "text/javascript", ".css": "text/css"}[Path(path).suffix]
            content = (REFERENCE / Path(path).name).read_bytes()
            self.answer(200, content, {"Content-Type": kind, **SAFETY})
            return
        content = self.body()
        kind = self.headers.get("Content-Type", "")
        body = json.loads(content) if content and "json" in kind else content or None
        lists = parse_qs(url.query)
        query = {name: each if len(each) > 1 else each[0] for name, each in lists.items()}
        self.server.requests.append((method, path, query, body))
        sent = self.headers.get("Authorization")
        if self.server.key is not None and sent != f"Bearer {self.server.key}":
            why = "unknown API key" if sent else "no API key"
            self._problem(401, "unauthorized", why)
        elif path.endswith("/live") and f"GET {stream_of(path)}" not in self.server.answers:
            self._json(404, query, body)
        elif path == "/v1/events" or path.endswith("/live"):
            self._follow()
        else:
            self._json(self.server.answers.get(f"{method} {path}", 404), query, body)

    do_GET = do_PUT = do_POST = do_DELETE = _handle

    def _json(self, answer, query, body):
        if callable(answer):
            try:
                answer = answer(query, body)
            except ServiceError as error:
                self._refuse(error.document())
                return
        if isinstance(answer, int):
            self._problem(answer, "unknown-stream", "there is no stream 'nobody'")
        else:
            self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _problem(self, status, kind, detail):
        place = f"https://moca-service.dev/problems/{kind}"
        self._refuse({"type": place, "title": "Refused", "status": status, "detail": detail})

    def _refuse(self, problem):
        kind = {"Content-Type": "application/problem+json"}
        self.answer(problem["status"], json.dumps(problem).encode(), kind)

    def _follow(self):
        self.close_connection = True
        texts = self.server.followed(self.headers.get("Last-Event-ID"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for text in texts:
                self.wfile.write(text.encode())
                self.wfile.flush()
        except OSError:  # the browser left
            return


def stream_of(path):
    """Path of the stream that a path is about."""
    return "/".join(path.split("/")[:4])


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record(sys.argv[1]).items())
    FILE.write_text(f"{{\n{lines}\n}}\n")
