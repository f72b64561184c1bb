"""Changes as alerts of a real Alertmanager: with tags, resolved by a withdrawal, in groups."""

import contextlib
import subprocess
import time

import httpx
import pytest

from service.runtime.embedded import running_url
from service.store import keys
from service.store.connection import connect
from tests.deploy.test_alertmanager import CONFIG, PROGRAM, running
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port
from tests.service.webhooks.conftest import webhooks, writer  # noqa: F401
from tests.waiting import until

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="alertmanager is not installed")


PASSWORD = "alarms-only"
HASH = "$2b$04$abcdefghijklmnopqrstuufYwo2z0kXN9eKhfYZlhdYPBlKhmj4Zu"  # of it, by bcrypt


class Alertmanager:
    """What an Alertmanager answers of its alerts."""

    def __init__(self, port, auth):
        self.url = f"http://127.0.0.1:{port}/api/v2/alerts"
        self._auth = auth

    def alerts(self):
        """Alerts that fire, by stream and event."""
        found = httpx.get(self.url, auth=self._auth).raise_for_status().json()
        return {(each["labels"]["stream"], each["labels"]["event"]): each for each in found}


@contextlib.contextmanager
def running_alertmanager(folder, *options, auth=None):
    port = free_port()
    command = [PROGRAM, f"--config.file={CONFIG}", f"--storage.path={folder / 'am'}", *options]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with running(*command, stdout=subprocess.DEVNULL):
        found = Alertmanager(port, auth)

        def ready():
            with contextlib.suppress(httpx.HTTPError):
                return found.alerts() == {}
            return False

        until(ready)
        yield found


@pytest.fixture
def alertmanager(tmp_path):
    with running_alertmanager(tmp_path) as found:
        yield found


def test_a_change_fires_with_tags_and_its_withdrawal_resolves_it(
    alertmanager,
    webhooks,  # noqa: F811
    writer,  # noqa: F811
):
    webhooks.hook("am", alertmanager.url, secret=None, format="alertmanager")
    webhooks.start()
    tags = {"site": "north", "instance": 'a:9100 "b"', "__name__": "node_load1", "empty": ""}
    more = {"tags": tags, "pad": -3.96, "direction": "down", "probability": 0.5}
    writer.raise_("pump-7", 1, confirmed_at=13, **more)
    writer.raise_("pump-7", 2, confirmed_at=23, **more)
    until(lambda: len(alertmanager.alerts()) == 2, lambda: webhooks.processes.log_of("webhooks"))
    alert = alertmanager.alerts()["pump-7", "1"]
    assert alert["labels"] == {
        "alertname": "MocaChange",
        "stream": "pump-7",
        "model": "gaussian@1",
        "generation": "1",
        "event": "1",
        "site": "north",
        "instance": 'a:9100 "b"',
        "metric": "node_load1",
    }
    assert alert["annotations"]["summary"].startswith("Change confirmed: pump-7 down by 3.96 sd")
    assert alert["status"]["state"] in ("active", "unprocessed")
    writer.raise_("pump-7", 1, "withdrawn", confirmed_at=13, **more)
    until(lambda: set(alertmanager.alerts()) == {("pump-7", "2")})
    until(lambda: webhooks.pending("am") == 0)
    assert webhooks.metric("failed_attempts_total", "am") == 0


def test_an_alertmanager_that_asks_for_a_password(tmp_path, webhooks, writer):  # noqa: F811
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users:\n  moca: {HASH}\n")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    options = f"--web.config.file={web}"
    with running_alertmanager(tmp_path, options, auth=("moca", PASSWORD)) as found:
        assert httpx.get(found.url).status_code == 401
        fields = {"secret": None, "format": "alertmanager", "username": "moca"}
        webhooks.hook("am", found.url, **fields, password_file=str(tmp_path / "password"))
        webhooks.hook("wrong", found.url, **fields, password="not-this-one")
        webhooks.start()
        writer.raise_("a", 1, confirmed_at=13)
        until(lambda: set(found.alerts()) == {("a", "1")})
        until(lambda: webhooks.metric("delivered_total", "am") == 1)
        until(lambda: webhooks.metric("failed_attempts_total", "wrong") > 0)
        assert webhooks.metric("failed_attempts_total", "am") == 0
        assert webhooks.metric("delivered_total", "wrong") == 0
    log = webhooks.processes.log_of("webhooks")
    assert "response status 401" in log
    for secret in (PASSWORD, "not-this-one", "Basic"):
        assert secret not in log


def test_a_group_is_one_request_of_several_alerts(alertmanager, webhooks, writer):  # noqa: F811
    fields = {"secret": None, "format": "alertmanager", "group_seconds": 1.5}
    webhooks.hook("am", alertmanager.url, **fields, match=['{site="north"}'])
    webhooks.start()
    for i in range(20):
        site = {"site": "north" if i % 2 else "south"}
        writer.raise_(f"s{i}", 1, confirmed_at=13, tags=site)
        if i % 4 == 1:  # within the same group
            writer.raise_(f"s{i}", 1, "withdrawn", confirmed_at=13, tags=site)
    until(lambda: webhooks.metric("delivered_total", "am") == 15)
    assert set(alertmanager.alerts()) == {(f"s{i}", "1") for i in range(3, 20, 4)}


def test_an_alert_ends_by_itself(alertmanager, webhooks, writer):  # noqa: F811
    webhooks.hook("am", alertmanager.url, secret=None, format="alertmanager", resolve_s=3.0)
    webhooks.start()
    writer.raise_("a", 1, confirmed_at=13)
    until(lambda: set(alertmanager.alerts()) == {("a", "1")})
    began = time.monotonic()
    until(lambda: not alertmanager.alerts())
    assert time.monotonic() - began > 1.0


def test_the_whole_way_from_an_observation_to_an_alert_and_its_end(alertmanager, tmp_path):
    """`moca serve`: a change of a stream with tags fires; feedback that it was none resolves it."""
    processes = Processes(tmp_path, {"MOCA_PARTITIONS": "4"})
    port, data = free_port(), tmp_path / "data"
    hooks = tmp_path / "hooks.toml"
    console = f"http://127.0.0.1:{port}"
    hooks.write_text(f"""
console_url = "{console}"
[[hook]]
name = "am"
format = "alertmanager"
url = "{alertmanager.url}"
match = ['{{site="north"}}']
""")
    options = ["--webhooks-file", str(hooks), "--webhook-hosts", "http://127.0.0.1"]
    labels = [0.3 * (-1) ** i + (8.0 if i >= 30 else 0.0) for i in range(60)]
    known = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02, "confirm_after": 4}
    try:
        processes.start("serve", "serve", "--data-dir", str(data), "--port", str(port), *options)
        wait_ready(console)
        with connect(running_url(data)) as client:
            until(lambda: client.hexists(keys.WEBHOOKS, "am"))
        with httpx.Client(base_url=f"{console}/v1/streams", timeout=60) as client:
            for site in ("north", "south"):
                settings = {**known, "tags": {"site": site, "job": "pumps"}}
                assert client.put(f"/pump-{site}", json=settings).status_code == 201
                body = [{"y": y} for y in labels]
                client.post(f"/pump-{site}/observations", json=body).raise_for_status()
            (change,) = [
                each
                for each in client.get("/pump-north/changepoints").json()["events"]
                if each["state"] == "confirmed"
            ]
            until(lambda: alertmanager.alerts(), lambda: processes.log_of("serve"))
            ((key, alert),) = alertmanager.alerts().items()
            assert key == ("pump-north", str(change["id"]))
            assert (alert["labels"]["site"], alert["labels"]["job"]) == ("north", "pumps")
            place = f"/#/streams/pump-north?at={change['start']}"
            assert alert["generatorURL"] == alert["annotations"]["link"] == console + place
            rejected = client.put(
                f"/pump-north/changepoints/{change['id']}", json={"change": False}
            )
            rejected.raise_for_status()
            until(lambda: key not in alertmanager.alerts(), lambda: processes.log_of("serve"))
    finally:
        processes.stop_all()
