"""The Kafka recipe as it stands, reading from librdkafka's mock cluster: killed and rewound."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.deployment import PATIENCE_S
from tests.e2e.docs.pages import blocks
from tests.waiting import until

kafka = pytest.importorskip("confluent_kafka")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "prometheus.md"
TOPIC, GROUP, SENSORS, EACH = "readings", "moca", 6, 60
NO_READINGS = (None, b"", b"{", b"[1]", b"{}", b'{"sensor": "p0", "value": 1e999, "time": null}')
PARTITIONS = 4  # of a topic that the mock cluster makes


class Cluster:
    """The mock cluster, which lives in a producer."""

    def __init__(self):
        # Without a pause for batches, to the partitions that Kafka's own clients choose.
        settings = {"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "linger.ms": 0}
        self._producer = kafka.Producer(settings | {"partitioner": "murmur2_random"})
        brokers = self._producer.list_topics(TOPIC, timeout=PATIENCE_S).brokers.values()
        self.address = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        self.sent = {f"p{i}": [] for i in range(SENSORS)}

    def send(self, count):
        """Send so many readings of each sensor."""
        for _ in range(count):
            for sensor, values in self.sent.items():
                at = len(values)
                values.append(10.0 * int(sensor[1:]) + at / 64)
                reading = {"sensor": sensor, "value": values[-1]}
                reading["time"] = f"2024-05-01T{at // 60:02}:{at % 60:02}:00Z"
                self._producer.produce(TOPIC, json.dumps(reading).encode(), key=sensor.encode())
        assert self._producer.flush(PATIENCE_S) == 0

    def send_no_readings(self):
        for value in NO_READINGS:
            self._producer.produce(TOPIC, value, key=b"p0")
        assert self._producer.flush(PATIENCE_S) == 0

    def places(self):
        return [kafka.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]

    def committed(self):
        """Offset of the reader's group in each partition."""
        return self._as_member(lambda member: member.committed(self.places(), timeout=10))

    def ends(self):
        return self._as_member(
            lambda member: [member.get_watermark_offsets(place)[1] for place in self.places()]
        )

    def rewind(self, by):
        """Have the last messages of each partition delivered again; returns how many.

        The group must have no reader any more.
        """
        done = {each.partition: max(0, each.offset) for each in self.committed()}
        back = [
            kafka.TopicPartition(TOPIC, partition, max(0, offset - by))
            for partition, offset in done.items()
        ]

        def commit(member):  # the mock cluster takes offsets of members only
            member.subscribe([TOPIC])
            until(lambda: member.poll(0.1) or len(member.assignment()) == PARTITIONS)
            member.commit(offsets=back, asynchronous=False)

        self._as_member(commit)
        return sum(done.values()) - sum(place.offset for place in back)

    def _as_member(self, act):
        settings = {"bootstrap.servers": self.address, "group.id": GROUP}
        # The mock cluster measures all members by the timeout of the last one.
        settings |= {"enable.auto.commit": False, "session.timeout.ms": 6000}
        member = kafka.Consumer(settings)
        try:
            return act(member)
        finally:
            member.close()


@pytest.fixture
def reader(tmp_path, service_url, cluster):
    """Start the recipe in a process of its own; may be called again after a kill."""
    (code,) = (code for kind, code, _ in blocks(PAGE) if "confluent_kafka" in code)
    replaced = code.replace("localhost:9092", cluster.address)
    replaced = replaced.replace("http://127.0.0.1:8000", service_url)
    assert cluster.address in replaced
    assert service_url in replaced
    (tmp_path / "reader.py").write_text(replaced)
    running = []

    def start():
        with (tmp_path / "reader.log").open("ab") as log:
            environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
            command = [sys.executable, "reader.py"]
            running.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
            )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def cluster():
    return Cluster()


@pytest.mark.slow
def test_every_message_reaches_its_stream_once(cluster, reader, service_url, tmp_path):
    log = tmp_path / "reader.log"
    with httpx.Client(base_url=service_url, timeout=PATIENCE_S) as client:

        def labels(sensor):
            answer = client.get(f"/v1/streams/{sensor}/history?start=0&limit=1000")
            kept = answer.json().get("observations", []) if answer.status_code == 200 else []
            return [each["y"] for each in kept]

        process = reader()
        cluster.send_no_readings()
        cluster.send(EACH // 2)
        until(lambda: sum(len(labels(each)) for each in cluster.sent) > SENSORS, log.read_text)
        process.kill()  # amid the messages
        process.wait()
        assert cluster.rewind(by=10) > 0  # as if acknowledgements had been lost
        cluster.send(EACH // 2)
        reader()
        until(lambda: [p.offset for p in cluster.committed()] == cluster.ends(), log.read_text)
        until(lambda: all(len(labels(each)) >= EACH for each in cluster.sent), log.read_text)
        assert {sensor: labels(sensor) for sensor in cluster.sent} == cluster.sent
    assert log.read_text().count("is no reading") >= len(NO_READINGS)
