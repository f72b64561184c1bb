"""The examples of OpenAPI, sent to a service; `python -m tests.e2e.asking URL` records them.

The service must be a fresh one, whose model `regimes` has two versions: see `publish`.
"""

import random
import shutil
import sys

import httpx
import msgspec

from service.api.openapi import EXAMPLES, all_examples
from service.api.parsing.bodies import ARROW, BYTES
from service.api.parsing.samples import PROTOBUF
from service.models.catalogue import SHIPPED
from tests.e2e import calling
from tests.service.api.calls import request_of
from tests.waiting import PATIENCE_S, until

KEPT = 4  # of a long list of objects or numbers
ENDLESS = ("events", "follow_observations")


def publish(folder):
    """Put two versions of a model into a folder of models, for the examples of a canary."""
    for version in ("1", "2"):
        shutil.copytree(SHIPPED / "regimes" / "1", folder / "regimes" / version)


def prepare(client):
    """Make the streams that the examples are about."""
    rng = random.Random(6)
    levels = {"model": "gaussian", "location": 10, "scale": 0.5, "regimes": 4}
    calling.ask(client, "PUT", "mill", 201, json=levels)
    seen = [  # long before what others are about: no incident with them
        {
            "y": 10 - 3 * (i // 30 % 2) + rng.gauss(0, 0.5),
            "time": f"2024-04-{1 + i // 24:02}T{i % 24:02}:00:00Z",
        }
        for i in range(130)
    ]
    calling.ask(client, "POST", "mill/observations", json=seen)
    rng = random.Random(5)
    for stream, settings in (
        ("pump-7", {"model": "gaussian", "location": 10, "scale": 0.5}),
        ("coin", {"model": "bernoulli"}),
        ("ad", {"model": "linear"}),
    ):
        calling.ask(client, "PUT", stream, 201, json=settings)
    seen = [{"y": 10 - 3 * (i >= 40) + rng.gauss(0, 0.5)} for i in range(70)]
    calling.ask(client, "POST", "pump-7/observations", json=seen)
    for i in range(4):  # an incident
        boiler = f"boiler-{i}"
        settings = {"model": "gaussian", "location": 60, "scale": 1, "tags": {"region": "eu"}}
        calling.ask(client, "PUT", boiler, 201, json=settings)
        seen = [
            {"y": 60 + 8 * (j >= 40) + rng.gauss(0, 1), "time": f"2024-05-01T14:{j:02}:00Z"}
            for j in range(60)
        ]
        calling.ask(client, "POST", f"{boiler}/observations", json=seen)
    seen = []
    for i in range(30):
        x = [float(i % 2), float(i % 3 == 0)]
        seen.append({"x": x, "y": x[0] - x[1] / 2 + rng.gauss(0, 0.1)})
    calling.ask(client, "POST", "ad/observations", json=seen)


def ask(client, each, blob):
    """Send one example; `blob` is a snapshot for the one that needs it."""
    labels = {"__name__": "node_load1", "instance": "a:9100", "job": "node"}
    samples = [(0.4, 1_767_225_600_000), (0.5, 1_767_225_660_000)]
    asked = request_of(each, blob, (labels, samples))

    def send():
        return client.request(
            asked.call.method, asked.url, content=asked.content, headers=asked.headers
        )

    if each.call in ENDLESS:
        return first_message(client, asked.url)
    if each.call == "changepoints":
        until(lambda: send().json()["hindsight"]["status"] != "pending")
    return send()


def first_message(client, url):
    """The first message of an endless answer."""
    with client.stream("GET", url) as response:
        text = ""
        for part in response.iter_text():
            text += part
            if "data:" in text and text.endswith("\n\n"):
                break
    message = next(block for block in text.split("\n\n") if "data:" in block)
    return httpx.Response(response.status_code, headers=response.headers, text=message + "\n\n")


def answer_of(response):
    """An answer as an example has it."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind in (BYTES, ARROW, PROTOBUF):
        return "(bytes)"
    if not response.content:
        return msgspec.UNSET
    return response.json() if kind == "application/json" else response.text


def play(client):
    """Each example with its response, in order."""
    prepare(client)
    blob = b""
    for each in all_examples():
        response = ask(client, each, blob)
        blob = response.content if each.call == "get_snapshot" else blob
        yield each, response


def shortened(value):
    """An answer for the page: long lists cut, numbers to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [shortened(each) for each in value[:KEPT]]
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    return value


def record(url):
    """Write the answers of a service into the file of examples."""
    recorded = []
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for each, response in play(client):
            assert response.is_success, f"{each.summary}: {response.text}"
            new = msgspec.structs.replace(
                each, status=response.status_code, answer=shortened(answer_of(response))
            )
            recorded.append(new)
    lines = ",\n".join(msgspec.json.encode(each).decode() for each in recorded)
    EXAMPLES.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    record(sys.argv[1])
