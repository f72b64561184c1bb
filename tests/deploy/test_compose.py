"""docker-compose.yml is valid under the Compose specification, and says what it has to."""

import re
from pathlib import Path

import compose_spec
import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def composed():
    text = (ROOT / "docker-compose.yml").read_text()
    # Every variable has a default: nothing has to be set before the first `up`.
    assert not re.findall(r"(?<!\$)\$\{\w+\}", text)
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))


def test_the_specification_accepts_it(composed):
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(composed)).validate()


def test_the_specification_refuses_what_is_wrong(composed):
    wrong = {**composed, "services": {"api": {"image": "a", "ports": ["eight"]}}}
    with pytest.raises(ValueError, match="port"):
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(wrong)).validate()


def test_the_services_are_there(composed):
    services = composed["services"]
    usual = {name for name, service in services.items() if "profiles" not in service}
    assert usual == {"secrets", "redis", "api", "worker", "prometheus", "grafana"}
    assert services["worker-gpu"]["profiles"] == ["gpu"]
    assert services["demo"]["profiles"] == ["demo"]
    (device,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_nothing_runs_with_more_rights_than_it_needs(composed):
    for name, service in composed["services"].items():
        assert service["cap_drop"] == ["ALL"] or name == "grafana", name
        assert "no-new-privileges:true" in service["security_opt"]
        assert "container_name" not in service, "it could not be scaled"
        if name != "grafana":
            assert service["read_only"] is True


def test_only_this_machine_reaches_what_is_published(composed):
    for name, service in composed["services"].items():
        for port in service.get("ports", []):
            where = port if isinstance(port, str) else port["host_ip"]
            assert where.startswith("127.0.0.1"), name


def test_no_password_is_in_the_file(composed):
    """Passwords are files of a volume that containers read."""
    services = composed["services"]
    assert services["api"]["environment"]["MOCA_REDIS_PASSWORD_FILE"].startswith("/run/moca/")
    assert "requirepass %s" in services["redis"]["command"][-1]
    assert "@" not in services["api"]["environment"]["MOCA_REDIS_URL"]


@pytest.mark.parametrize("line", ["appendonly yes", "maxmemory-policy noeviction"])
def test_redis_keeps_what_it_accepted(line):
    for place in ("redis", "kubernetes/base"):
        assert line in (ROOT / "deploy" / place / "redis.conf").read_text().splitlines()
