"""The protocol between APIs, workers and the store, as a model that is explored exhaustively.

Lease, append, commit and take-over of one partition, with two APIs and two workers. `Store` mirrors
the scripts of `service/store/scripts`; `successors` yields every next state of the whole: a step of
a process, a request that the store carries out, a crash, a request that is late (its sender has
given up, and the store may carry it out at any later time or never; a lost reply is one that is
carried out at once), a lease that ends, a client that repeats its command at the other API.

There is no time: whatever may happen may happen at any moment. A reply that is slow is a process
that does not act on it yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

WHOLE = -1  # index of an offset: the whole entry is applied


class Broken(AssertionError):
    """A state that the protocol promises not to reach; with the steps to it."""


class Offset(NamedTuple):
    """Commands 0..index of an entry are applied."""

    entry: int = 0
    index: int = WHOLE  # type: ignore[assignment]


class Entry(NamedTuple):
    """An entry of the log: who appended it, under which number, and its commands by key."""

    id: int
    incarnation: int
    number: int
    commands: tuple[int, ...]


class Row(NamedTuple):
    """The effect of one command; repeat: its key was known, so nothing was applied."""

    entry: int
    index: int  # type: ignore[assignment]
    command: int
    repeat: bool


# --- the store ------------------------------------------------------------------------------------


class Append(NamedTuple):
    """See append.lua. `repeated`: an earlier try may have been carried out, or may yet be."""

    incarnation: int
    number: int
    commands: tuple[int, ...]
    repeated: bool = False


class Acquire(NamedTuple):
    """See acquire.lua."""

    token: str


class Release(NamedTuple):
    """See release.lua."""

    token: str


class Commit(NamedTuple):
    """See commit.lua; the rows are its effects."""

    token: str
    expected: Offset
    new: Offset
    rows: tuple[Row, ...]


Request = Append | Acquire | Release | Commit


class Store(NamedTuple):
    """One partition in the store. `planted` names checks that are left out."""

    bound: int
    planted: frozenset[str] = frozenset()
    lease: str | None = None
    epoch: int = 0
    offset: Offset = Offset()
    appended: int = 0
    done: int = 0
    last_id: int = 0
    log: tuple[Entry, ...] = ()
    # Incarnation, its last number, entry of that; entry 0: it was refused.
    numbers: tuple[tuple[int, int, int], ...] = ()
    rows: tuple[Row, ...] = ()

    def run(self, request: Request) -> tuple[Store, object]:
        """Carry a request out; returns the store after it, and the reply."""
        if isinstance(request, Append):
            return self.append(request)
        if isinstance(request, Acquire):
            return self.acquire(request)
        if isinstance(request, Release):
            return self.release(request)
        return self.commit(request)

    def append(self, request: Append) -> tuple[Store, object]:
        """Reply with the entry's id; "full"; or "late", for a number below the last."""
        numbers = {incarnation: (number, id_) for incarnation, number, id_ in self.numbers}
        number, id_ = numbers.get(request.incarnation, (0, 0))
        if "number" not in self.planted:
            if number == request.number:
                return self, id_ or "full"
            if number > request.number:
                return self, "late"
        if self.appended - self.done + len(request.commands) > self.bound:
            if not request.repeated or "refusal" in self.planted:
                return self, "full"
            return self.noted(request, 0), "full"
        id_ = self.last_id + 1
        after = self.noted(request, id_)._replace(
            last_id=id_,
            log=(*self.log, Entry(id_, *request[:3])),
            appended=self.appended + len(request.commands),
        )
        return after, id_

    def noted(self, request: Append, id_: int) -> Store:
        """Note the entry of an incarnation's last number."""
        others = [n for n in self.numbers if n[0] != request.incarnation]
        number = (request.incarnation, request.number, id_)
        return self._replace(numbers=tuple(sorted([*others, number])))

    def acquire(self, request: Acquire) -> tuple[Store, object]:
        """Reply with epoch and offset, or None where somebody holds the lease."""
        if self.lease is not None:
            return self, None
        after = self._replace(lease=request.token, epoch=self.epoch + 1)
        if not self.waiting():  # whatever the counters say
            most = max(after.appended, after.done)
            after = after._replace(appended=most, done=most)
        return after, (after.epoch, after.offset)

    def renew(self, token: str) -> bool:
        """Whether the lease is still that of a token."""
        return self.lease == token

    def release(self, request: Release) -> tuple[Store, object]:
        """Reply whether the lease was the token's."""
        if self.lease != request.token:
            return self, False
        return self._replace(lease=None), True

    def commit(self, request: Commit) -> tuple[Store, object]:
        """Reply OK, ALREADY or FENCED."""
        if self.lease != request.token and "token" not in self.planted:
            return self, "FENCED"
        if self.offset != request.expected and "offset" not in self.planted:
            return self, "ALREADY" if self.offset == request.new else "FENCED"
        new = request.new
        after = self._replace(
            offset=new,
            done=self.done + len(request.rows),
            rows=self.rows + request.rows,
            log=tuple(
                entry
                for entry in self.log
                if entry.id > new.entry
                or (entry.id == new.entry and new.index != WHOLE and "trim" not in self.planted)
            ),
        )
        return after, "OK"

    def waiting(self, after: Offset | None = None) -> list[tuple[Entry, int]]:
        """Commands in the log beyond an offset: entry and index."""
        at = after or self.offset
        return [
            (entry, i)
            for entry in self.log
            for i in range(len(entry.commands))
            if entry.id > at.entry or (entry.id == at.entry and at.index != WHOLE and i > at.index)
        ]


def offset_after(entry: Entry, index: int) -> Offset:
    """The offset once a command is applied."""
    return Offset(entry.id, WHOLE if index == len(entry.commands) - 1 else index)


# --- the processes --------------------------------------------------------------------------------


class Api(NamedTuple):
    """An API process. `sent`: the append that is under way."""

    incarnation: int
    number: int = 0
    queue: tuple[int, ...] = ()
    sent: Append | None = None


class Worker(NamedTuple):
    """A worker. `rows`: its streams in memory, as of `at`; `owed`: tokens to give back."""

    name: str
    tokens: int = 0
    token: str | None = None
    at: Offset = Offset()
    rows: tuple[Row, ...] | None = None
    sent: Acquire | Release | Commit | None = None
    owed: tuple[str, ...] = ()

    def forget(self, token: str) -> Worker:
        """Drop what is not ours any more, or may not be; its token is given back."""
        return Worker(self.name, self.tokens, owed=(*self.owed, token))


class World(NamedTuple):
    """Everything, and the faults that may still happen.

    `history` is every entry that was ever appended, `posts` and `refusals` count those of each
    command; commands from `keyless` on have no idempotency key, and are posted once.
    """

    store: Store
    apis: tuple[Api, ...]
    workers: tuple[Worker, ...]
    faults: int
    posts: tuple[int, ...]
    refusals: tuple[int, ...]
    keyless: int
    late: tuple[Request, ...] = ()
    history: tuple[Entry, ...] = ()

    def applied(self, command: int) -> bool:
        """Whether a command's client can have its answer."""
        return any(row.command == command for row in self.store.rows)

    def at_rest(self) -> bool:
        """Whether nothing is under way: every command is applied, refused or lost with its API."""
        return not self.store.waiting() and not any(api.sent or api.queue for api in self.apis)


def start(
    commands: int, faults: int, keyless: int = 0, bound: int = 9, planted: str = "", apis: int = 2
) -> World:
    """The state in which each of some commands was posted to one of the APIs."""
    queues = [tuple(range(i, commands, apis)) for i in range(apis)]
    return World(
        store=Store(bound, frozenset(planted.split())),
        apis=tuple(Api(i, queue=queue) for i, queue in enumerate(queues)),
        workers=(Worker("a"), Worker("b")),
        faults=faults,
        posts=(1,) * commands,
        refusals=(0,) * commands,
        keyless=commands - keyless,
    )


Step = tuple[str, World]


def successors(world: World) -> Iterator[Step]:
    """Every state that may come next, and the step to it."""
    for i, api in enumerate(world.apis):
        yield from api_steps(world, i, api)
    for i, worker in enumerate(world.workers):
        yield from worker_steps(world, i, worker)
    for request in dict.fromkeys(world.late):
        left = list(world.late)
        left.remove(request)
        after, _ = carried_out(world._replace(late=tuple(left)), request)
        yield f"the store carries out a late {request}", after
    lease = world.store.lease
    if lease is not None:
        # One that nobody has any more ends for certain.
        held = any(lease in (w.token, getattr(w.sent, "token", None)) for w in world.workers)
        if not held or world.faults:
            ended = world._replace(store=world.store._replace(lease=None))
            yield "the lease ends", fault(ended) if held else ended


def fault(world: World) -> World:
    """Count a fault."""
    return world._replace(faults=world.faults - 1)


def late(world: World, request: Request) -> World:
    """Leave a request to the store, of which nobody awaits the reply."""
    return fault(world)._replace(late=tuple(sorted((*world.late, request), key=repr)))


def carried_out(world: World, request: Request) -> tuple[World, object]:
    """Have the store carry a request out."""
    before = world.store
    store, reply = before.run(request)
    history = (*world.history, *(e for e in store.log if e.id > before.last_id))
    if isinstance(request, Commit) and reply == "OK":
        owner = before.lease if before.lease is not None else "nobody"
        if owner != request.token:
            raise Broken(f"{request.token} committed while {owner} had the lease")
    return world._replace(store=store, history=history), reply


def with_api(world: World, i: int, api: Api) -> World:
    """Replace an API."""
    return world._replace(apis=(*world.apis[:i], api, *world.apis[i + 1 :]))


def with_worker(world: World, i: int, worker: Worker) -> World:
    """Replace a worker."""
    return world._replace(workers=(*world.workers[:i], worker, *world.workers[i + 1 :]))


def counted(counts: tuple[int, ...], commands: tuple[int, ...]) -> tuple[int, ...]:
    """Counts by command, one more for each of some."""
    return tuple(count + (i in commands) for i, count in enumerate(counts))


def api_steps(world: World, i: int, api: Api) -> Iterator[Step]:
    """What an API does next, or happens to it."""
    name = f"api {i}"
    sent = api.sent
    if sent is None and api.queue:
        number = api.number + ("reuse" not in world.store.planted or not api.number)
        request = Append(api.incarnation, number, api.queue)
        began = api._replace(number=number, queue=(), sent=request)
        yield f"{name} sends {request}", with_api(world, i, began)
    if sent is not None:
        after, reply = carried_out(world, sent)
        if reply != "full":
            done = api._replace(sent=None)
            yield f"{name} is answered {reply}", with_api(acknowledged(after, sent), i, done)
        else:
            refusals = counted(world.refusals, sent.commands)
            refused = with_api(after, i, api._replace(sent=None))
            yield f"{name} refuses {sent}", refused._replace(refusals=refusals)
    if not world.faults:
        return
    if sent is not None:
        again = api._replace(sent=sent._replace(repeated=True))
        yield f"{name} repeats {sent}", with_api(late(world, sent), i, again)
    lost = (*api.queue, *(sent.commands if sent else ()))
    crashed = fault(world) if sent is None else late(world, sent)
    crashed = with_api(crashed, i, Api(api.incarnation + len(world.apis)))
    yield f"{name} crashes", posted_again(crashed, i, lost)
    # Its client waits no longer for a command that was sent.
    waiting = tuple(c for c in range(world.keyless) if not world.applied(c))
    for command in waiting:
        if world.posts[command] == 1 and command % len(world.apis) == i:
            yield f"command {command} is repeated", posted_again(fault(world), i, (command,))


def posted_again(world: World, i: int, commands: tuple[int, ...]) -> World:
    """Post commands again at the API beside this one; those that have no key are not."""
    keyed = tuple(command for command in commands if command < world.keyless)
    other = (i + 1) % len(world.apis)
    api = world.apis[other]
    fresh = tuple(command for command in keyed if command not in api.queue)
    posts = counted(world.posts, fresh)
    return with_api(world._replace(posts=posts), other, api._replace(queue=(*api.queue, *fresh)))


def acknowledged(world: World, request: Append) -> World:
    """Check that what is acknowledged was appended, under that number and once."""
    found = [e for e in world.history if e[1:3] == request[:2]]
    if len(found) != 1 or found[0].commands != request.commands:
        raise Broken(f"{request} is acknowledged, appended were {found}")
    return world


def worker_steps(world: World, i: int, worker: Worker) -> Iterator[Step]:
    """What a worker does next, or happens to it."""
    name, sent, token = f"worker {worker.name}", worker.sent, worker.token
    if sent is not None:
        after, reply = carried_out(world, sent)
        yield f"{name}: {sent} is answered {reply}", with_worker(after, i, told(worker, reply))
    elif token is None:
        if worker.owed:
            request: Request = Release(worker.owed[0])
            giving = worker._replace(sent=request, owed=worker.owed[1:])
            yield f"{name} sends {request}", with_worker(world, i, giving)
        else:
            request = Acquire(f"{worker.name}{worker.tokens}")
            yield f"{name} sends {request}", with_worker(world, i, worker._replace(sent=request))
    else:
        for commit in commits(world.store, worker, token):
            rows = world.store.rows if worker.rows is None else worker.rows
            computed = worker._replace(sent=commit, rows=rows)
            yield f"{name} sends {commit}", with_worker(world, i, computed)
        if not world.store.renew(token):
            yield f"{name} cannot renew", with_worker(world, i, worker.forget(token))
    if world.faults:
        yield from worker_faults(world, i, worker)


def worker_faults(world: World, i: int, worker: Worker) -> Iterator[Step]:
    """What may happen to a worker."""
    name, sent, token = f"worker {worker.name}", worker.sent, worker.token
    fresh = Worker(worker.name, worker.tokens + 1)
    if sent is not None:
        given_up = worker.forget(sent.token)._replace(tokens=worker.tokens + 1)
        yield f"{name} gives {sent} up", with_worker(late(world, sent), i, given_up)
        if isinstance(sent, Commit):
            yield f"{name} repeats {sent}", late(world, sent)
        yield f"{name} crashes", with_worker(late(world, sent), i, fresh)
    elif token is not None:
        yield f"{name} crashes", with_worker(fault(world), i, fresh)
        handed = Worker(worker.name, worker.tokens, sent=Release(token))
        yield f"{name} hands over", with_worker(fault(world), i, handed)


def told(worker: Worker, reply: object) -> Worker:
    """A worker after the reply to what it sent."""
    sent = worker.sent
    idle = worker._replace(sent=None)
    if isinstance(sent, Acquire) and isinstance(reply, tuple):
        # Its streams are loaded when they are first needed.
        return idle._replace(token=sent.token, tokens=worker.tokens + 1, at=reply[1], rows=None)
    if isinstance(sent, Commit):
        if reply != "OK":
            return idle.forget(sent.token)
        assert worker.rows is not None
        return idle._replace(at=sent.new, rows=worker.rows + sent.rows)
    return idle


def commits(store: Store, worker: Worker, token: str) -> Iterator[Commit]:
    """Commits of what a worker reads now: of all of it, and of the first command alone."""
    waiting = store.waiting(worker.at)
    known = store.rows if worker.rows is None else worker.rows
    for count in {len(waiting), 1} if waiting else ():
        rows: list[Row] = []
        for entry, at in waiting[:count]:
            command = entry.commands[at]
            seen = () if "key" in store.planted else (*known, *rows)
            repeat = any(row.command == command for row in seen)
            rows.append(Row(entry.id, at, command, repeat))
        yield Commit(token, worker.at, offset_after(*waiting[count - 1]), tuple(rows))


# --- what is promised -----------------------------------------------------------------------------


def check(world: World) -> None:
    """Raise Broken where a promise does not hold."""
    store = world.store
    every = [(e.id, i, c) for e in world.history for i, c in enumerate(e.commands)]
    applied = [row[:3] for row in store.rows]
    if applied != every[: len(applied)]:
        raise Broken(f"applied in the order {applied}, appended in the order {every}")
    first = [row.command for row in store.rows if not row.repeat]
    if len(first) != len(set(first)):
        raise Broken(f"applied twice: {store.rows}")
    left = [(entry.id, i, entry.commands[i]) for entry, i in store.waiting()]
    if applied + left != every:
        raise Broken(f"lost: of {every} {applied} are applied and {left} wait")
    if store.appended - store.done != len(left):
        raise Broken(f"{store.appended} in, {store.done} done, {len(left)} wait")
    numbers: dict[int, int] = {}
    for entry in world.history:
        if entry.number <= numbers.get(entry.incarnation, 0):
            raise Broken(f"out of order: {world.history}")
        numbers[entry.incarnation] = entry.number
    check_answers(world)


def check_answers(world: World) -> None:
    """Raise Broken where a client gets a wrong answer."""
    at_rest = world.at_rest()
    for command, (posts, refusals) in enumerate(zip(world.posts, world.refusals, strict=True)):
        if posts == refusals and any(command in entry.commands for entry in world.history):
            raise Broken(f"command {command} was refused and appended")
        if at_rest and command < world.keyless and not refusals and not world.applied(command):
            raise Broken(f"command {command} was neither applied nor refused")


class Explored(NamedTuple):
    """States that were reached, and steps between them."""

    states: int
    steps: int


def explore(first: World) -> Explored:
    """Visit every state that can be reached; raises Broken with the steps to a broken promise.

    From every state one must be reachable in which nothing is under way any more.
    """
    number = {first: 0}
    came: list[tuple[int, str]] = [(-1, "")]
    before: list[list[int]] = [[]]
    queue = deque([first])
    steps = 0
    ends: list[int] = []
    at = 0
    try:
        while queue:
            world = queue.popleft()
            at = number[world]
            check(world)
            if world.at_rest():
                ends.append(at)
            for step, after in successors(world):
                steps += 1
                if after not in number:
                    number[after] = len(number)
                    came.append((at, step))
                    before.append([])
                    queue.append(after)
                before[number[after]].append(at)
        stuck = set(range(len(number))) - reaching(ends, before)
        if stuck:
            at = min(stuck)
            raise Broken("what is under way here never ends")
    except Broken as error:
        raise Broken(f"{error}\n" + "\n".join(steps_to(at, came))) from None
    return Explored(len(number), steps)


def reaching(ends: list[int], before: list[list[int]]) -> set[int]:
    """States from which an end can be reached."""
    found = set(ends)
    queue = list(ends)
    while queue:
        for at in before[queue.pop()]:
            if at not in found:
                found.add(at)
                queue.append(at)
    return found


def steps_to(at: int, came: list[tuple[int, str]]) -> list[str]:
    """The steps from the first state to one."""
    steps: list[str] = []
    while at > 0:
        at, step = came[at]
        steps.append(step)
    return steps[::-1]
