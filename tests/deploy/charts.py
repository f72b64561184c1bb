"""The Helm chart as helm renders it, and values that tests of it share."""

import json
import subprocess
from pathlib import Path

import yaml

from tests.deploy.manifests import documents, tool

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "moca"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DOCUMENT = (ROOT / "docs" / "deployment.md").read_text()
POD = {
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "batch", "operator": "Exists"}],
    "affinity": {"podAffinity": {}},
    "podAnnotations": {"team": "pumps"},
}
OURS = {
    **POD,
    "extraEnv": [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "otlp", "key": "token"}}}
    ],
    "extraVolumes": [{"name": "rules", "configMap": {"name": "rules"}}],
    "extraVolumeMounts": [{"name": "rules", "mountPath": "/etc/rules"}],
}
# Values of nearly every kind, each other than its default.
MANY = {
    "image": {
        "repository": "registry.example:5000/moca",
        "tag": "7",
        "gpuTag": "7-gpu",
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {
        "MOCA_MAX_SNAPSHOT_BYTES": 1 << 27,
        "MOCA_TRACE_SHARE": 0.25,
        "MOCA_LOG_LEVEL": "debug",
        "MOCA_REQUIRE_KEYS": False,
    },
    "redis": {
        "password": 'of "a\\ test',
        "image": "redis:8.0",
        "sentinels": True,
        "extraConfig": "maxmemory 6gb\n",
        "storage": {"size": "50Gi", "className": "fast"},
        **POD,
    },
    "api": {"tag": "6", "autoscaling": {"enabled": False}, "replicas": 3, **OURS},
    "worker": {
        "keda": {"enabled": True, "maxReplicas": 32, "threshold": 1000000},
        "gpu": {"enabled": True, "memory": "8Gi"},
        **OURS,
    },
    "models": {"image": "registry.example/models:3"},
    "webhooks": {"enabled": True, "hosts": "hooks.example", **OURS},
    "ingress": {"enabled": True, "host": "streams.example", "annotations": {}},
    "monitoring": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "authorization": {"credentials": {"name": "moca-metrics", "key": "key"}},
        "url": "https://streams.example/",
    },
    "networkPolicy": {
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 4318}]}],
        "dns": {"to": [{"namespaceSelector": {}}], "ports": [{"protocol": "UDP", "port": 5353}]},
    },
}
ELSEWHERE = {
    "redis": {"url": "rediss://cache.example:6380/2", "passwordKey": "password"},
    "networkPolicy": {"redisEgress": [{"ports": [{"protocol": "TCP", "port": 6380}]}]},
}


# All parts on, with the values that they have.
MANY_ON = {
    "redis": {"sentinels": True},
    "worker": {"keda": {"enabled": True}},
    "webhooks": {"enabled": True},
    "ingress": {"enabled": True},
    "monitoring": {"enabled": True},
}


def merged(one, other):
    """Values of both; those of the other win."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys()}
    return one | other | both


def run(*arguments, values=None):
    """What helm prints, or the error with which it refuses."""
    done = subprocess.run(
        [tool("helm"), *map(str, arguments), "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
    )
    return done.stdout if done.returncode == 0 else f"refused: {done.stderr}"


def template(values=None, release="zz", chart=CHART, options=()):
    text = run("template", release, chart, "--namespace", "moca", *options, values=values)
    assert not text.startswith("refused"), text
    return documents(text)


def pods(found):
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in found
        if each["kind"] in ("Deployment", "StatefulSet")
    }
