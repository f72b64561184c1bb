"""Both clients while a slot of a real cluster is on its way, and after."""

import pytest
import redis

from service.store import keys
from service.store.connection import connect, connect_async
from service.store.shards import SLOTS, slot_of
from tests.clusters import running_nodes, valkey
from tests.ports import free_ports
from tests.waiting import until

HALF = SLOTS // 2
MOVING = keys.log(3)
HERE = next(key for key in map(keys.log, range(64)) if slot_of(key) < HALF and key != MOVING)
THERE = next(key for key in map(keys.log, range(64)) if slot_of(key) >= HALF and key != MOVING)


def is_up(node):
    info = node.execute_command("CLUSTER INFO")
    return (info["cluster_state"] if isinstance(info, dict) else info).count("ok") > 0


@pytest.fixture(scope="module")
def pair():
    """Two servers with half of the slots each; yields their address and clients of each."""
    with running_nodes(valkey()) as nodes:
        ports = free_ports(2)
        for port in ports:
            nodes.start(port, "--cluster-enabled", "yes", "--save", "")
        servers = [nodes.client(port) for port in ports]
        for i, server in enumerate(servers):
            server.execute_command("CLUSTER ADDSLOTSRANGE", i * HALF, i * HALF + HALF - 1)
            server.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
        servers[0].execute_command("CLUSTER MEET", "127.0.0.1", ports[1])
        for server in servers:
            until(lambda s=server: is_up(s))
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports), servers


async def test_a_command_follows_its_key_and_answers_keep_their_order(pair):
    url, servers = pair
    source, target = servers if slot_of(MOVING) < HALF else servers[::-1]
    ids = {server: server.execute_command("CLUSTER MYID") for server in servers}

    def assign(server, *words):
        server.execute_command("CLUSTER SETSLOT", slot_of(MOVING), *words)

    def counting(start):
        return [("INCRBY", key, start + i) for i, key in enumerate((HERE, MOVING, THERE, MOVING))]

    client = connect_async(url)
    with connect(url) as blocking:
        assert await client.run(counting(1)) == [1, 2, 3, 6]
        assign(target, "IMPORTING", ids[source])
        assign(source, "MIGRATING", ids[target])
        port = target.get_connection_kwargs()["port"]
        source.execute_command("MIGRATE", "127.0.0.1", port, MOVING, 0, 5000)
        assert await client.run(counting(10)) == [11, 17, 15, 30]
        assert blocking.run(counting(100)) == [111, 131, 117, 234]
        with pytest.raises(redis.exceptions.MovedError):  # the way was asked for this once
            target.get(MOVING)
        for server in (target, source):
            assign(server, "NODE", ids[target])
        assert blocking.run(counting(1000)) == [1111, 1235, 1119, 2238]
        assert await client.run(counting(1000)) == [2111, 3239, 2121, 4242]
        assert target.get(MOVING) == "4242"
    await client.aclose()
