"""Bring the compose file up, send observations through it, kill one container of each kind.

    python deploy/trial/run.py                                    # with docker
    python deploy/trial/run.py --engine podman --host-network     # without networks of its own
    python deploy/trial/run.py --engine podman --build -- ARGUMENT...    # for deploy/build.sh

Two APIs and two workers on one Redis, watched by Prometheus, in a project of their own
(`moca-trial`) whose volumes go at the end. Exit status 0 if everything that was looked at is as it
has to be.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import load

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROJECT = "moca-trial"
IMAGE = "moca-service:0.1.0-cpu"
USER = "10001"
APIS = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
PROMETHEUS = "http://127.0.0.1:9090"
TARGETS = 5  # two APIs, two workers, itself
START_S = 120
ROUND_S = 12  # in which Prometheus asks everybody once, and evaluates its rules
COMPOSE = {"docker": ["docker", "compose"], "podman": ["podman-compose"]}


class Wrong(Exception):
    """Something is not as it has to be."""


class Deployment:
    """The containers of one trial."""

    def __init__(self, options):
        self.engine = options.engine
        files = [ROOT / "docker-compose.yml"]
        self.services = ["redis", "api", "worker", "prometheus"]
        self.scale = ["--scale", "api=2", "--scale", "worker=2"]
        if options.host_network:
            files.append(HERE / "host.yml")
            self.services += ["api-2", "worker-2"]
            self.scale = []
        self.compose = [*COMPOSE[self.engine], "--project-name", PROJECT]
        self.compose += [part for file in files for part in ("--file", str(file))]
        self.environment = {**os.environ, "MOCA_IMAGE": options.image, "MOCA_PORTS": "8000-8001"}

    def up(self):
        """Start everything, and wait until both APIs are ready."""
        self._composed("up", "--detach", "--no-build", *self.scale, *self.services)
        for url in (*(f"{api}/readyz" for api in APIS), f"{PROMETHEUS}/-/ready"):
            wait_for(url)

    def down(self):
        """Stop everything and remove it with its volumes."""
        self._composed("down", "--volumes")

    def containers(self, kind):
        """Names of the containers of a kind."""
        found = []
        for service in (kind, f"{kind}-2"):
            labels = (f"project={PROJECT}", f"service={service}")
            filters = [
                p for each in labels for p in ("--filter", f"label=com.docker.compose.{each}")
            ]
            found += self.asked("ps", "--all", *filters, "--format", "{{.Names}}").split()
        return found

    def asked(self, *command, check=True):
        """Output of a command of the engine."""
        done = subprocess.run([self.engine, *command], capture_output=True, text=True, timeout=120)
        if check and done.returncode != 0:
            raise Wrong(done.stderr.strip())
        return (done.stdout or done.stderr).strip()

    def _composed(self, *command):
        subprocess.run(
            [*self.compose, *command],
            cwd=ROOT,
            env=self.environment,
            check=True,
            stdout=sys.stderr,
            timeout=600,
        )


def wait_for(url):
    """Wait until an address answers with 200."""
    began = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
                return response.read()
        except (OSError, urllib.error.URLError) as error:
            if time.monotonic() > began + START_S:
                raise Wrong(f"{url}: {error}") from None
            time.sleep(0.5)


def check_rights(deployment):
    """Each process of the service runs without rights, on a file system that it cannot write to."""
    for name in (*deployment.containers("api"), *deployment.containers("worker")):
        user = deployment.asked("exec", name, "id", "-u")
        written = deployment.asked("exec", name, "touch", "/opt/moca/there", check=False)
        status = deployment.asked("exec", name, "cat", "/proc/1/status")
        allowed = next(line.split()[1] for line in status.splitlines() if "CapEff" in line)
        print(f"{name}: user {user}, capabilities {allowed}, {written.rpartition(': ')[2]}")
        if user != USER or int(allowed, 16) != 0 or "Read-only" not in written:
            raise Wrong(f"{name} has more privileges than it needs")


def check_load(deployment, observations):
    """Observations go through while one container of each kind is killed; none is lost."""
    command = [sys.executable, str(HERE / "load.py"), "--engine", deployment.engine]
    command += ["--observations", str(observations)]
    command += [part for url in APIS for part in ("--url", url)]
    for kind in ("worker", "api", "redis", "prometheus"):
        command += ["--kill", deployment.containers(kind)[0]]
    if subprocess.run(command, timeout=1800).returncode != 0:
        raise Wrong("observations were lost, or applied twice")


def check_prometheus(killed):
    """Every process is scraped, rules have values, and what was known before the kill still is."""
    wait_for(f"{PROMETHEUS}/-/ready")
    time.sleep(2 * ROUND_S)
    up = asked_prometheus("count(up == 1)", time.time())
    recorded = asked_prometheus('count({__name__=~"moca:.*"})', time.time())
    before = asked_prometheus("count(up)", killed)
    print(
        f"prometheus: {up} of {TARGETS} targets up, {recorded} recorded series,"
        f" {before} targets known from before it was killed"
    )
    if (up, before) != (TARGETS, TARGETS) or recorded == 0:
        raise Wrong("Prometheus lacks targets or series")


def asked_prometheus(query, at):
    """Number that a query has at a time."""
    asked = urllib.parse.urlencode({"query": query, "time": at})
    result = json.loads(wait_for(f"{PROMETHEUS}/api/v1/query?{asked}"))["data"]["result"]
    return int(result[0]["value"][1]) if result else 0


def parsed():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engine", choices=COMPOSE, default="docker", help="docker")
    parser.add_argument("--image", default=IMAGE, help=f"image to run ({IMAGE})")
    parser.add_argument("--build", action="store_true", help="build the image first")
    parser.add_argument("--host-network", action="store_true", help="use the host's network")
    parser.add_argument(
        "--observations", type=load.positive, default=10_000, help="number of observations (10000)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the containers running")
    parser.add_argument("arguments", nargs="*", help="options for deploy/build.sh, after --")
    return parser.parse_args()


def main():
    """Run, and say what was found."""
    options = parsed()
    if options.build:
        build = [str(ROOT / "deploy" / "build.sh"), "--tag", options.image, *options.arguments]
        subprocess.run(build, check=True)
    deployment = Deployment(options)
    try:
        size = int(deployment.asked("image", "inspect", "--format", "{{.Size}}", options.image))
        print(f"{options.image}: {size / 1e6:.0f} MB", flush=True)
        run_trial(deployment, options.observations)
    except Wrong as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            deployment.down()
    return 0


def run_trial(deployment, observations):
    """Everything that is looked at, in order."""
    deployment.up()
    check_rights(deployment)
    time.sleep(ROUND_S)
    began = time.time()
    check_load(deployment, observations)
    check_prometheus(began)


if __name__ == "__main__":
    sys.exit(main())
