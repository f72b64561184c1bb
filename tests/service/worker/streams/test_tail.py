"""The tail of a stream: what a commit appends to it, and what it drops."""

from service import wire
from service.store import keys
from service.store.streams import in_tail, unseal
from service.wire import Event
from service.worker.streams.stream import Stream
from tests.stored import record


def tail_effects(stream):
    """What the next commit does to the stored tail."""
    effects, _ = stream.effects()
    return [effect for effect in effects if effect[1] == keys.tail(0, "a")]


def observe(stream, count):
    head = stream.live()
    for _ in range(count):
        stream.tail.put(record(head.seq, float(head.seq)))
        head.seq += 1
    stream.touch(1)


def test_rows_go_when_they_are_sealed_and_in_a_checkpoint():
    stream = Stream(0, "a")  # its first chunk ends at 61
    stream.create(wire.Head(1, wire.StreamSettings("gaussian"), warm=True))
    observe(stream, 70)
    ((push, _, *stored),) = tail_effects(stream)
    assert push == "RPUSH"
    assert [r.seq for r in in_tail("a", stored)] == [*range(70)]
    for checkpoint, first in ((30, 30), (65, 61)):
        stream.live().checkpoint = checkpoint
        unlink, (push, _, *stored) = tail_effects(stream)
        assert (unlink, push) == (("UNLINK", keys.tail(0, "a")), "RPUSH")
        assert [r.seq for r in in_tail("a", stored)] == [*range(first, 70)]
        assert (stream.tail.start, stream.tail.end) == (first, 70)
        assert tail_effects(stream) == []
    observe(stream, 1)
    ((push, _, *more),) = tail_effects(stream)
    loaded = Stream(0, "a")
    loaded.tail.read([*stored, *more])
    assert loaded.tail.records(0) == [record(seq, float(seq)) for seq in range(61, 71)]


def test_a_corrected_record_has_the_tail_written_anew():
    stream = Stream(0, "a")
    stream.create(wire.Head(1, wire.StreamSettings("gaussian"), warm=True))
    observe(stream, 5)
    stream.effects()
    stream.tail.put(record(3, -1.0))
    unlink, (push, _, blob) = tail_effects(stream)
    assert (unlink, push) == (("UNLINK", keys.tail(0, "a")), "RPUSH")
    assert [r.y for r in in_tail("a", [blob])] == [0.0, 1.0, 2.0, -1.0, 4.0]


def test_what_is_sealed_and_in_a_checkpoint_at_once_never_comes_into_the_tail():
    stream = Stream(0, "a")
    stream.create(wire.Head(1, wire.StreamSettings("gaussian"), warm=True))
    observe(stream, 70)
    stream.live().checkpoint = 70
    effects, _ = stream.effects()
    (push,) = [effect for effect in effects if effect[0] == "RPUSH"]
    assert [r.seq for r in in_tail("a", push[2:])] == [*range(61, 70)]
    (chunk,) = [effect for effect in effects if effect[1] == keys.history(0, "a")]
    assert [r.seq for r in unseal("a", 0, chunk[3])] == [*range(61)]


def test_labels_of_a_stream_without_a_chunk_are_read_from_no_store():
    stream = Stream(0, "a")  # its first chunk ends at 61
    stream.create(wire.Head(1, wire.StreamSettings("gaussian"), warm=True, y_dim=1))
    observe(stream, 100)
    assert stream.tail.missing(stream.live(), 2016) == (0, "a", [])
    labels = stream.tail.labels(stream.live(), [], 2016)
    assert labels.y[:, 0].tolist() == [*map(float, range(100))]


def test_what_a_deleted_generation_left_waiting_goes_with_its_keys():
    """Also where the stream is made again before the commit: that writes in order."""
    stream = Stream(0, "a")
    for generation in (1, 2):
        stream.create(wire.Head(generation, wire.StreamSettings("gaussian"), warm=True))
        observe(stream, 3)
        stream.keep_events([Event(generation, "confirmed", 1, 1)])
        stream.commit_checkpoint(b"state")
        if generation == 1:
            stream.delete(1)
    effects, _ = stream.effects()
    for key, written, dropped in (
        (keys.events(0, "a"), [("HSET", "change:1"), ("HSET", "change:2")], ("UNLINK",)),
        (keys.checkpoints(0), 2 * [("HSET", "a")], ("HDEL", "a")),
    ):
        own = [(operation, *rest[:1]) for operation, name, *rest in effects if name == key]
        assert own == [written[0], dropped, written[1]]
    (push,) = [effect for effect in effects if effect[0] == "RPUSH"]
    assert [r.seq for r in in_tail("a", push[2:])] == [0, 1, 2]
    assert stream.idle
