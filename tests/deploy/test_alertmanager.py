"""Where alerts go: the configuration, and an alert on its way from a rule to the receiver."""

import contextlib
import json
import shutil
import subprocess
import sys
import time

import httpx
import pytest
import yaml

from tests.deploy.dashboards import DEPLOY, PROMETHEUS
from tests.deploy.live import configured, running_prometheus
from tests.ports import free_port

CONFIG = DEPLOY / "alertmanager" / "alertmanager.yml"
RECEIVER = DEPLOY / "alertmanager" / "receiver.py"
PROGRAM = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
WITHIN_S = 120


@contextlib.contextmanager
def running(*command, **options):
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def running_receiver(path):
    """Run the receiver; yields its address. What it prints is in the file."""
    port = free_port()
    with path.open("w") as out, running(sys.executable, RECEIVER, "127.0.0.1", port, stdout=out):
        url = f"http://127.0.0.1:{port}/"
        for _ in range(200):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(url)
                break
            time.sleep(0.05)
        yield url


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
def test_the_configuration_is_valid():
    found = subprocess.run(["amtool", "check-config", str(CONFIG)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_compose_leads_from_rules_to_the_receiver():
    services = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]
    prometheus = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    ((target,),) = (
        each["targets"]
        for one in prometheus["alerting"]["alertmanagers"]
        for each in one["static_configs"]
    )
    name, _, port = target.partition(":")
    assert f"127.0.0.1:{port}:{port}" in services[name]["ports"]
    (receiver,) = yaml.safe_load(CONFIG.read_text())["receivers"]
    (hook,) = receiver["webhook_configs"]
    assert httpx.URL(hook["url"]).host in services
    assert services["alert-log"]["volumes"][0].startswith("./deploy/alertmanager/receiver.py:")


def test_the_receiver_prints_alerts_and_refuses_what_is_none(tmp_path):
    printed = tmp_path / "printed"
    alert = {
        "status": "firing",
        "labels": {"alertname": "MocaLoadShed", "severity": "warning", "namespace": "shop"},
        "annotations": {"summary": "5% are refused", "runbook_url": "http://p/#mocaloadshed"},
        "startsAt": "2026-01-01T00:00:00Z",
    }
    with running_receiver(printed) as url:
        for wrong in (b"", b"[]", b"{", b'{"alerts": [{}]}'):
            assert httpx.post(url, content=wrong).status_code == 400
        too_long = {"Content-Length": str(1 << 21)}
        assert httpx.post(url, headers=too_long, content=b" " * (1 << 21)).status_code == 400
        assert printed.read_text() == ""
        assert httpx.post(url, json={"alerts": [alert, alert]}).status_code == 200
    line = {
        "status": "firing",
        "alert": "MocaLoadShed",
        "severity": "warning",
        "namespace": "shop",
        "summary": "5% are refused",
        "runbook_url": "http://p/#mocaloadshed",
        "since": "2026-01-01T00:00:00Z",
    }
    assert [json.loads(each) for each in printed.read_text().splitlines()] == [line, line]


def configured_alertmanager(folder, url):
    config = yaml.safe_load(CONFIG.read_text())
    config["route"]["group_wait"] = "1s"
    config["receivers"][0]["webhook_configs"][0]["url"] = url
    path = folder / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="alertmanager is not installed")
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_an_alert_reaches_the_receiver_with_a_runbook_that_can_be_opened(tmp_path):
    """No API is there: MocaTargetDown fires after half a minute."""
    printed = tmp_path / "printed"
    port = free_port()
    with running_receiver(printed) as url:
        config = configured_alertmanager(tmp_path, url)
        command = [PROGRAM, f"--config.file={config}", f"--storage.path={tmp_path / 'am'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        watched = configured(tmp_path / "prometheus", [free_port()], [])
        changed = yaml.safe_load(watched.read_text())
        (one,) = changed["alerting"]["alertmanagers"]
        one["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
        watched.write_text(yaml.safe_dump(changed))
        with (
            running(*command, stdout=subprocess.DEVNULL),
            running_prometheus(shutil.which("prometheus"), watched) as prometheus,
        ):
            end = time.monotonic() + WITHIN_S
            while not printed.read_text():
                assert time.monotonic() < end, "no alert came"
                time.sleep(0.5)
            alert = json.loads(printed.read_text().splitlines()[0])
            assert (alert["status"], alert["alert"]) == ("firing", "MocaTargetDown")
            assert "does not respond" in alert["summary"]
            address = f"{prometheus.url}/consoles/moca-alerts.html#mocatargetdown"
            assert alert["runbook_url"] == address
            page = httpx.get(address)
            assert page.status_code == 200
            assert 'id="mocatargetdown"' in page.text
            assert "<code>sed -i 's|&#123;{ $externalURL }}" in page.text
