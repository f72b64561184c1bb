"""The Helm chart's values, package, notes and documents."""

import json
import re
import subprocess
import tarfile
import tomllib

import pytest
import yaml

from service.settings import Settings
from tests.deploy.charts import (
    CHART,
    DOCUMENT,
    ELSEWHERE,
    MANY,
    ROOT,
    VALUES,
    merged,
    pods,
    run,
    template,
)
from tests.deploy.manifests import FOLDER, documents, tool

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Settings that the chart sets itself, or for which the image has a place.
OWN = {
    "MOCA_REDIS_URL", "MOCA_REDIS_PASSWORD_FILE", "MOCA_DATA_DIR", "MOCA_MODELS_DIR", "MOCA_HOST",
    "MOCA_PORT", "MOCA_WORKERS", "MOCA_DEVICE", "MOCA_METRICS_PORT", "MOCA_WEBHOOKS_FILE",
    "MOCA_WEBHOOK_HOSTS",
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"worker": {"replicas": "two"}}, "worker.replicas: Invalid type. Expected: integer"),
        ({"worker": {"replica": 2}}, "worker: Additional property replica is not allowed"),
        ({"settings": {"MOCA_PARTITION": 8}}, "Additional property MOCA_PARTITION is not allowed"),
        ({"settings": {"MOCA_REDIS_URL": "redis://h"}}, "property MOCA_REDIS_URL is not allowed"),
        ({"image": {"pullPolicy": "always"}}, 'must be one of the following: "", "Always"'),
        ({"redis": {"url": "http://h"}}, "redis.url: Does not match pattern"),
        ({"redis": {"url": "redis://u:p@h:1"}}, "redis.url: expected a URL without a password"),
        ({"redis": {"url": "redis://h:1"}}, "networkPolicy.redisEgress: expected the egress rules"),
        ({"redis": {"passwordSecret": ""}}, "redis.passwordSecret: expected the name of a secret"),
        ({"redis": {"url": "rediss://h:1?a=b&password=p"}}, "got one in its query"),
        ({"redis": {"url": "redis+sentinel://h/m?sentinel_password=p"}}, "got one in its query"),
        ({"redis": {"url": "redis://h", "sentinels": True}}, "expected none with redis.sentinels"),
        ({"redis": {"url": "redis://h", "extraConfig": "a b"}}, "or redis.extraConfig, which"),
        ({"networkPolicy": {"redisEgress": [{}]}}, "redisEgress: expected none without redis.url"),
        (
            {"models": {"image": "i", "volume": {"enabled": True}}},
            "models.image: expected none with models.volume.enabled",
        ),
        ({"settings": {"MOCA_LOG_LEVEL": "loud"}}, "settings.MOCA_LOG_LEVEL: Does not match"),
        ({"settings": {"MOCA_PARTITIONS": 0}}, "settings.MOCA_PARTITIONS: Must be greater than"),
        ({"settings": {"MOCA_ACCESS_LOG": False}}, "settings.MOCA_ACCESS_LOG: Invalid type"),
        (
            {"settings": {"MOCA_OPEN_ACCESS": True}},
            "settings: expected MOCA_REQUIRE_KEYS or MOCA_OPEN_ACCESS, got both",
        ),
        ({"worker": {"resources": {"limits": {"memory": "2GB"}}}}, "Does not match pattern"),
        ({"ingress": {"annotations": {"a": 1}}}, "ingress.annotations.a: Invalid type"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values, message):
    text = run("template", "zz", CHART, values=values)
    assert text.startswith("refused")
    assert message in text


def test_the_schema_knows_each_value_and_no_other():
    def known(node):
        if "properties" not in node or node.get("additionalProperties") is not False:
            return None
        return {key: known(each) for key, each in node["properties"].items()}

    def compare(schema, values, path):
        assert schema.keys() == values.keys(), path
        for key, each in schema.items():
            if each is not None:
                compare(each, values[key], f"{path}.{key}")

    every = known(SCHEMA)
    del every["global"]  # which Helm adds for the charts of a chart
    del every["enabled"]  # by which another chart includes this one
    settings = every.pop("settings")
    compare(every, {key: each for key, each in VALUES.items() if key != "settings"}, "values")
    variables = {f"MOCA_{name.upper()}" for name in Settings.model_fields}
    assert settings.keys() == variables - OWN
    assert variables >= OWN


def test_the_schema_has_the_types_and_limits_of_settings():
    expected = {}
    for name, setting in Settings.model_json_schema()["properties"].items():
        (rule,) = (each for each in setting.get("anyOf", [setting]) if each["type"] != "null")
        limits = rule.keys() & {"type", "pattern", "minimum", "maximum", "exclusiveMinimum"}
        expected[f"MOCA_{name.upper()}"] = {key: rule[key] for key in limits}
    stated = SCHEMA["properties"]["settings"]["properties"]
    assert stated == {name: expected[name] for name in stated}


def test_the_chart_may_be_part_of_another(tmp_path):
    """Under a condition, which is a value of the part."""
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    subprocess.run(["cp", "-RL", str(CHART), str(parent / "charts")], check=True)
    part = {"name": "moca", "version": "0.1.0", "condition": "moca.enabled"}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [part]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    assert template({"moca": {"enabled": True}}, chart=parent) == template({})
    assert not template({"moca": {"enabled": False}}, chart=parent)


def test_the_version_is_that_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_a_packaged_chart_has_the_files_that_links_lead_to(tmp_path):
    """A package goes where the other folders are not."""
    command = [tool("helm"), "package", str(CHART), "--destination", str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True)
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        links = [member.name for member in archive if not member.isreg()]
        inside = archive.extractfile("moca/files/redis.conf").read()
    assert not links
    assert inside == (FOLDER / "base" / "redis.conf").read_bytes()
    assert template(MANY, chart=package) == template(MANY)


def test_the_notes_name_what_is_there(tmp_path):
    """Helm shows them only after it has installed something."""
    note = '{{ dict "notes" (include (print .Template.BasePath "/NOTES.txt") .) | toYaml }}'
    subprocess.run(["cp", "-RL", str(CHART), str(tmp_path)], check=True)
    (tmp_path / "moca/templates/notes.yaml").write_text(f"kind: Notes\n{note}\n")

    def notes(values):
        found = template(values, chart=tmp_path / "moca")
        return next(each["notes"] for each in found if each["kind"] == "Notes")

    usual = notes({})
    assert "kubectl -n moca create secret generic moca-redis --from-file=redis_password" in usual
    assert "exec deploy/zz-moca-api -- moca keys create" in usual
    assert "port-forward service/zz-moca-api 8000:80" in usual
    many = notes(MANY)
    assert "secret" not in many
    assert "https://streams.example/" in many
    assert "webhook" not in many
    assert "No webhook is called" in notes({"webhooks": {"enabled": True}})
    there = notes(ELSEWHERE)
    assert "moca-redis has the password of rediss://cache.example:6380/2 in password" in there


def test_every_process_takes_the_url_of_a_secret():
    """As documented; Kubernetes prefers `env` to `envFrom`."""
    values = yaml.safe_load(re.search(r"```yaml\n(redis: .*?)```", DOCUMENT, re.DOTALL)[1])
    by_pod = pods(template(merged(values, {"webhooks": {"enabled": True}})))
    assert by_pod.keys() == {"zz-moca-api", "zz-moca-worker", "zz-moca-webhooks"}
    for pod in by_pod.values():
        (container,) = pod["spec"]["containers"]
        (url,) = (each for each in container["env"] if each["name"] == "MOCA_REDIS_URL")
        assert url["valueFrom"] == {"secretKeyRef": {"name": "moca-redis", "key": "url"}}
        # A password of a file beside one in the URL is refused.
        assert not any(each["name"] == "redis" for each in container["volumeMounts"])


def test_the_objects_of_kustomize_are_deleted_without_namespace_and_volumes():
    """By the command that is documented for a move to the chart."""
    (command,) = re.findall(r"^kubectl kustomize (\S+) \| (awk .*) \|", DOCUMENT, re.MULTILINE)
    overlay = command[0].removeprefix("deploy/kubernetes/")
    text = subprocess.run(
        [tool("kubectl"), "kustomize", str(FOLDER / "overlays/production")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (FOLDER / overlay).is_dir()
    left = subprocess.run(
        ["sh", "-c", command[1]], input=text, capture_output=True, text=True, check=True
    ).stdout
    kept = ("Namespace", "PersistentVolumeClaim")
    assert documents(left) == [each for each in documents(text) if each["kind"] not in kept]


def test_the_table_of_values_is_complete():
    section = DOCUMENT[DOCUMENT.index("\n## Helm\n") :].split("\n## ")[1]
    named = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    for name in named:
        value = VALUES
        for part in name.split("."):
            assert part in value, name
            value = value[part]
    assert {name.split(".")[0] for name in named} == VALUES.keys()


def test_documented_installations_are_complete():
    """An image that a cluster can pull, the namespace of the secret, and pods to `exec` in."""
    texts = (DOCUMENT, (ROOT / "README.md").read_text())
    commands = [line for text in texts for line in re.findall(r"helm install [^`\n]+", text)]
    assert len(commands) == 2
    for command in commands:
        for part in (" -n moca", " --wait", " --set image.repository="):
            assert part in command, command
