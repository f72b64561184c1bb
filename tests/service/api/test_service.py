"""Models, probes, metrics, OpenAPI, and what the router refuses."""

import json
import re
import subprocess
import sys

import pytest

from model_core.upm.builtin import NEWEST
from service.api.routes.table import CALLS
from service.models.catalogue import Catalogue
from service.store.connection import UnusableServer
from tests.service.api.conftest import running


def put_model(folder, name, version, **changes):
    described = {"format": 1, "kind": "alpaca", "x_dim": 2, "y_dim": 1, "hazard": 0.1, **changes}
    place = folder / name / version
    place.mkdir(parents=True)
    (place / "model.json").write_text(json.dumps(described))


async def test_models(api, settings):
    folder = settings.models_dir
    for version in ("1", "9", "10"):
        put_model(folder, "sine", version, training={"iterations": int(version)})
    numbers = {"version": 1, "metrics": [{"name": "test NLL", "estimate": {"mean": -0.5}}]}
    (folder / "sine" / "9" / "report.json").write_text(json.dumps(numbers))
    put_model(folder, "odd", "1", format=7)
    put_model(folder, ".hidden", "1")
    wrong = {
        "hazard": "low",
        "regimes": [{"name": 1}],
        "training": {"iterations": "many"},
        "encoder": {"own": [1]},
    }
    put_model(folder, "wrong", "1", **wrong)
    (folder / "empty").mkdir()
    models = {model["name"]: model for model in (await api.get("/v1/models")).json()["models"]}
    shipped = {model.name for model in Catalogue(folder / "none").models()}
    assert set(models) == {*shipped, "odd", "sine", "wrong"}
    assert {*NEWEST, "regimes"} <= shipped
    assert models["sine"]["default"] == "sine@10"
    assert models["sine"]["versions"] == ["1", "9", "10"]
    assert (models["odd"]["default"], "format 7" in models["odd"]["error"]) == (None, True)
    sine = (await api.get("/v1/models/sine")).json()
    assert [version["training"]["iterations"] for version in sine["versions"]] == [1, 9, 10]
    assert [version["report"] for version in sine["versions"]] == [None, numbers, None]
    assert models["wrong"]["hazard"] is None  # a client reads the rest
    (version,) = (await api.get("/v1/models/wrong")).json()["versions"]
    assert [version[name] for name in wrong] == [None, None, None, {"own": [1]}]
    assert (await api.get("/v1/models/gaussian")).json()["built_in"] is True
    for name in ("nothing", "..", "%2e%2e"):
        assert (await api.get(f"/v1/models/{name}")).status_code == 404


async def test_readiness_names_what_is_missing(settings, start, request):
    async with start(settings) as api:
        assert (await api.get("/livez")).json() == {"status": "alive"}
        response = await api.get("/readyz")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["reasons"] == ["4 of 4 partitions have no worker: 0, 1, 2, 3"]
        assert (await api.get("/readyz?partitions=any")).status_code == 503
        assert (await api.get("/readyz?partitions=none")).status_code == 422
        request.getfixturevalue("worker")
        assert (await api.get("/readyz")).json() == {"status": "ready"}


async def test_metrics(api):
    await api.post("/v1/streams/some-stream/observations", json={"y": 1})
    await api.get("/nowhere/else")
    await api.request("BREW", "/v1/streams")
    response = await api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = response.text
    assert 'route="/v1/streams/{stream}/observations"' in text
    assert 'method="other",route="/v1/streams"' in text
    assert 'route="unmatched",status="404"' in text
    assert 'moca_stage_duration_seconds_count{stage="ingest"}' in text
    assert 'moca_partition_lag_observations{partition="3"} 0.0' in text
    assert "moca_redis_up 1.0" in text
    assert "some-stream" not in text


async def test_openapi_describes_every_call(api):
    document = (await api.get("/openapi.json")).json()
    calls = [
        (path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    assert len(calls) == len(CALLS)
    for path, method, operation in calls:
        assert operation["summary"], (path, method)
        assert operation["description"], (path, method)
        parameters = operation.get("parameters", [])
        named = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
        assert ("{stream}" in path) == ("stream" in named)
        if method in ("post", "put"):
            (content, *_) = operation["requestBody"]["content"].values()
            assert content["schema"]
    schemas = document["components"]["schemas"]
    assert schemas["Observation"]["examples"]
    text = json.dumps(document)
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= set(schemas)


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
async def test_the_pages_of_the_interface_need_no_other_server(api, page):
    text = (await api.get(page)).text
    loaded = re.findall(r"(?:src|href|url)[=:] *[\"']([^\"']+)", text)
    assert len(loaded) >= 2
    for each in loaded:
        assert each.startswith("/"), each
        assert (await api.get(each)).status_code == 200


async def test_what_the_router_refuses(api):
    missing = await api.get("/v2/streams")
    assert missing.status_code == 404
    assert missing.json()["type"].endswith("/not-found")
    wrong = await api.patch("/v1/streams/s")
    assert wrong.status_code == 405
    assert wrong.headers["allow"]
    assert wrong.json()["type"].endswith("/method-not-allowed")
    for response in (missing, wrong):
        assert response.headers["content-type"] == "application/problem+json"


async def test_request_ids(api):
    kept = await api.get("/livez", headers={"X-Request-Id": "abc-1"})
    assert kept.headers["x-request-id"] == "abc-1"
    for harmful in ("a b", "x" * 65, ""):
        made = (await api.get("/livez", headers={"X-Request-Id": harmful})).headers["x-request-id"]
        assert made != harmful
        assert len(made) == 16


async def test_an_unexpected_error_is_a_problem_too(api, monkeypatch, caplog):
    def broken(stream):
        raise RuntimeError("a bug")

    monkeypatch.setattr(api.app.state.context.gateway, "partition", broken)
    response = await api.get("/v1/streams/s")
    assert response.status_code == 500
    assert response.json()["type"].endswith("/internal-error")
    assert response.json()["request_id"] == response.headers["x-request-id"]
    assert "a bug" not in response.text
    assert "a bug" in caplog.text


async def test_a_store_with_another_number_of_partitions_is_refused(settings, start):
    async with start(settings):
        pass
    other = start(settings.model_copy(update={"partitions": 5}))
    with pytest.raises(UnusableServer, match="created with 4 partitions"):
        await other.__aenter__()


def test_the_api_does_not_import_torch():
    code = "import service.api.app, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_default_model_that_is_not_there_is_said_at_the_start(settings, caplog):
    async with running(settings.model_copy(update={"default_model": "nope"})):
        assert "model 'nope' is not usable" in caplog.text
    caplog.clear()
    async with running(settings.model_copy(update={"default_model": "poisson@1"})):
        assert "is not usable" not in caplog.text
