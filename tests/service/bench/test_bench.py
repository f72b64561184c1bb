"""The load generator against real servers, the alternation, and the step benchmark."""

import asyncio
import inspect
import io
import json
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec

import pytest
import torch
import typer
from rich.console import Console

from model_core.filter import leaves
from service.bench import (
    BenchError,
    bench_gpu,
    bench_overload,
    bench_serve,
    bench_step,
    lists,
    open_loop,
    peers,
    results,
    slices,
)
from service.bench import overload as overloading
from service.bench import processes as run_processes
from service.bench import serve as serving
from service.bench.load import Job, Report, content_length, quantiles, request_bytes, run
from service.bench.processes import Server, cpu_seconds, echo_server, free_port
from service.bench.results import interval
from service.bench.subjects import Subject


@pytest.fixture(scope="module")
def echo():
    with echo_server() as server:
        yield server


def job(server, targets, **other):
    return Job("127.0.0.1", int(server.url.rpartition(":")[2]), targets, ['{"y": 1.5}'], **other)


def generate(made):
    return asyncio.run(run(made))


def test_load_on_the_echo(echo):
    report = generate(job(echo, ["/echo"] * 4, connections=4, seconds=0.3))
    assert report.requests > 4
    assert report.errors == {}
    assert 0.3 <= report.seconds < 10
    assert 0 < report.latency_ms["p50"] <= report.latency_ms["p99"] <= report.latency_ms["max"]
    assert report.rate == pytest.approx(report.requests / report.seconds)
    assert report.generator_us < 2000


def test_each_target_once(echo):
    report = generate(job(echo, ["/echo"] * 7, connections=3, seconds=0))
    assert (report.requests, report.errors) == (7, {})


def test_more_connections_than_targets(echo):
    report = generate(job(echo, ["/echo"], connections=8, seconds=0))
    assert report.requests == 1


def test_refusals_are_counted_and_not_throughput(echo):
    made = job(echo, ["/echo", "/nothing"], connections=2, seconds=0)
    report = generate(made)
    assert report.errors == {"404": 1}
    assert report.rate == pytest.approx(1 / report.seconds)


def test_targets_are_shared_out(echo):
    """Every connection walks through its own share; together they are all targets."""
    from service.bench.load import requests_of

    made = job(echo, [f"/{k}" for k in range(10)], connections=3, seconds=1)
    shares = [[next(requests_of(made, c)) for _ in range(1)] for c in range(3)]
    assert [share[0].split()[1] for share in shares] == [b"/0", b"/1", b"/2"]
    first = requests_of(made, 0)
    assert [next(first).split()[1] for _ in range(5)] == [b"/0", b"/3", b"/6", b"/9", b"/0"]


@asynccontextmanager
async def tcp_server(answer):
    """A server that hands each connection to `answer(reader, writer)`; yields its port."""
    tasks = []

    async def handle(reader, writer):
        tasks.append(asyncio.current_task())
        await answer(reader, writer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)


async def test_answers_in_pieces():
    async def answer(reader, writer):
        for _ in range(3):
            await reader.readuntil(b'{"y": 1.5}')
            for piece in (b"HTTP/1.1 200 OK\r\nContent-", b"Length: 5\r\n\r\nab", b"cde"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)

    async with tcp_server(answer) as port:
        made = Job("127.0.0.1", port, ["/"] * 3, ['{"y": 1.5}'], connections=1, seconds=0)
        report = await run(made)
    assert (report.requests, report.errors) == (3, {})


async def test_a_cut_connection_is_counted():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")

    async with tcp_server(answer) as port:
        made = Job("127.0.0.1", port, ["/"] * 2, ["{}"], connections=2, seconds=30)
        report = await run(made)
    assert report.errors == {"connection": 2}
    assert report.seconds < 20


def test_request_bytes():
    made = Job("h", 1, [], [], headers={"Idempotency-Key": "k"})
    head, _, body = request_bytes(made, "/a", '{"y": "ü"}').partition(b"\r\n\r\n")
    assert head.startswith(b"POST /a HTTP/1.1\r\nHost: h:1\r\n")
    assert b"Content-Length: 11" in head
    assert b"Idempotency-Key: k" in head
    assert body.decode() == '{"y": "ü"}'


def test_content_length():
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX: y"
    assert content_length(head, len(head)) == 12
    assert content_length(b"HTTP/1.1 204 No Content", 23) == 0


def test_quantiles():
    assert quantiles([k / 1000 for k in range(101)]) == pytest.approx(
        {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    )
    assert quantiles([]) == {}


# --- bench serve ----------------------------------------------------------------------------

PRETENDER = """
import sys, uvicorn
from fastapi import Body, FastAPI
app = FastAPI()
streams = {}
@app.post("/v1/streams/{name}/observations")
async def observe(name: str, body = Body()):
    rows = body if isinstance(body, list) else [body]
    streams[name] = streams.get(name, 0) + len(rows)
    return {"rows": len(rows)}
@app.get("/seen")
async def seen():
    return streams
@app.delete("/v1/streams/{name}")
async def delete(name: str):
    return {"rows": streams.pop(name)}
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""


@contextmanager
def pretender(*_):
    """A server with the two calls that the benchmark makes."""
    port = free_port()
    command = [sys.executable, "-c", PRETENDER, str(port)]
    with run_processes._running("the pretender", command, port, "/seen") as server:
        yield server


def quiet():
    return Console(file=io.StringIO(), width=100)


def test_bench_serve(monkeypatch):
    monkeypatch.setattr(serving, "moca_server", pretender)
    monkeypatch.setattr(serving, "WARM_S", 0.1)
    console = quiet()
    (result,) = bench_serve(seconds=1.2, connections=4, streams=10, rounds=2, console=console)
    assert len(result.service.reports) == len(result.echo.reports) == len(result.ratios()) == 2
    assert 0.05 < result.ratio() < 5
    assert result.service.errors() == {}
    said = " ".join(console.file.getvalue().split())
    assert str(interval(result.ratios())) in said
    assert "% of a core beside the service" in said
    if sys.platform == "linux":
        assert sum(result.service.cpu_us().values()) > 0
        assert list(result.echo.cpu_us()) == ["echo"]
    told = result.summary()
    assert told["ratio"]["median"] == pytest.approx(result.ratio())
    assert told["service"]["per_s"]["rounds"] == [each.rate for each in result.service.reports]
    assert (told["lists"], told["replay"]["seconds"]) == ([], {"rounds": []})


@pytest.mark.timeout(400)
def test_bench_serve_of_several_models_with_lists_and_replays(monkeypatch):
    monkeypatch.setattr(serving, "WARM_S", 0.1)
    monkeypatch.setattr(serving, "wait_until_compiled", lambda server: None)
    console = quiet()
    found = bench_serve(
        seconds=0.6, connections=2, streams=3, rounds=1, models=["gaussian", "categorical"],
        lists=20, replay=60, console=console,
    )  # fmt: skip
    assert [each.model for each in found] == ["gaussian", "categorical"]
    for result in found:
        assert result.service.errors() == {}
        assert [each.of for each in result.lists] == ["one stream", "20 streams"]
        for each in result.lists:
            assert len(each.per_s) == 1
            assert each.per_s[0] > 0
            if sys.platform == "linux":
                assert {"worker", "api", "store"} <= set(each.us)
                assert each.worker_rates()[0] == pytest.approx(1e6 / each.us["worker"][0])
        assert len(result.replay_s) == 1
        json.dumps(result.summary())
    said = console.file.getvalue()
    assert "lists of 20" in said
    assert "moca replay" in said


@pytest.mark.parametrize("model", [*serving.NEWEST, "pump"])
def test_observations_of_every_model(model):
    rows = slices.rows_of(model, 600)
    assert len(rows) == 600
    assert rows != slices.rows_of(model, 600, seed=2)
    assert all(("x" in row) == (model == "linear") for row in rows)
    labels = [row["y"] for row in rows]
    if model in ("bernoulli", "categorical"):
        assert set(labels) == set(range(2 if model == "bernoulli" else slices.CLASSES))
    assert slices.settings_of(model).get("classes") == (4 if model == "categorical" else None)


def test_kernels_are_waited_for(monkeypatch):
    """Two looks in a row without a worker that compiles; an earlier service does not say."""
    monkeypatch.setattr(slices, "LOOK_S", 0.0)
    told = iter([0.0, 2.0, 1.0, 0.0, 0.0, 5.0])
    monkeypatch.setattr(slices, "samples", lambda server: {slices.COMPILING: next(told)})
    slices.wait_until_compiled(Server("http://x", None))
    assert next(told) == 5.0
    monkeypatch.setattr(slices, "samples", lambda server: {slices.COMPILING: 1.0})
    with pytest.raises(BenchError, match="expected compiled kernels within 0 s, got 1 workers"):
        slices.wait_until_compiled(Server("http://x", None), 0.0)
    monkeypatch.setattr(slices, "samples", lambda server: {})
    slices.wait_until_compiled(Server("http://x", None))


def test_lists_that_are_not_applied_are_no_measurement(monkeypatch):
    def nothing(server, job, seconds, side):
        side.reports.append(Report(3, {}, 1.0, 0.0, {}))

    monkeypatch.setattr(lists, "slice_of", nothing)
    load = lists.ListLoad(Server("http://x", None), "gaussian", ["a"], 10)
    monkeypatch.setattr(lists, "samples", lambda server: {lists.APPLIED: 7.0})
    with pytest.raises(BenchError, match="expected observations to be applied"):
        load.run(1.0)
    monkeypatch.setattr(lists, "samples", lambda server: {})
    with pytest.raises(BenchError, match="expected /metrics"):
        load.run(1.0)


def test_one_envelope(tmp_path):
    file = tmp_path / "results.json"
    results.write_json(file, {"a": [1.0, float("inf")]})
    told = json.loads(file.read_text())
    assert list(told) == ["command", "date", "machine", "versions", "results"]
    assert told["results"] == {"a": [1.0, None]}
    assert told["machine"]["cores"] >= 1
    assert {"python", "torch"} <= set(told["versions"])


@pytest.mark.parametrize("command", ["serve", "scale", "step", "gpu", "train"])
def test_every_measurement_can_write_json(command):
    from service.commands.main import app

    (found,) = [
        each
        for group in app.registered_groups
        if group.name == "bench"
        for each in group.typer_instance.registered_commands
        if each.name == command
    ]
    assert "json_file" in inspect.signature(found.callback).parameters


def test_a_measurement_writes_what_it_returns(tmp_path, capsys):
    from service.commands.tools import measurement

    file = tmp_path / "x.json"
    measurement(lambda *, n: {"n": n})(n=3, json_file=file)
    assert json.loads(file.read_text())["results"] == {"n": 3}

    def fails():
        raise BenchError("expected a quiet machine")

    with pytest.raises(typer.Exit) as ended:
        measurement(fails)(json_file=None)
    assert ended.value.exit_code == 1
    assert "expected a quiet machine" in capsys.readouterr().err


def test_bench_of_a_running_service_leaves_nothing_behind():
    import httpx

    with pretender() as server:
        bench_serve(
            url=server.url, seconds=0.4, connections=2, streams=5, rounds=1, console=quiet()
        )
        assert httpx.get(server.url + "/seen", trust_env=False).json() == {}


def test_ratio_pairs_neighbours():
    result = serving.ServeBench(1, 1, "gaussian")
    for service, echo in ((30, 100), (20, 50), (90, 100)):
        result.service.reports.append(Report(service, {}, 1.0, 0.0, {}))
        result.echo.reports.append(Report(echo, {}, 1.0, 0.0, {}))
    assert result.ratios() == [0.3, 0.4, 0.9]
    assert result.ratio() == 0.4


@pytest.mark.parametrize(
    "bad",
    [
        {"connections": 0},
        {"streams": 2},
        {"rounds": 0},
        {"seconds": 0},
        {"url": "ftp://x"},
        {"lists": -1},
    ],
)
def test_bench_serve_refuses(bad):
    with pytest.raises(BenchError, match="expected"):
        bench_serve(**{"seconds": 1.0, **bad}, console=quiet())


def test_a_service_that_refuses_is_no_measurement(echo):
    with pytest.raises(BenchError, match="priming failed: {'404': 4}"):
        bench_serve(url=echo.url, seconds=0.2, connections=2, streams=4, rounds=1, console=quiet())


def test_a_server_that_dies_says_why():
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    running = run_processes._running("it", command, free_port(), "/")
    with pytest.raises(BenchError, match="(?s)it ended with 1.*no such thing"), running:
        pass


def test_settings_of_the_caller_do_not_reach_the_service(monkeypatch):
    monkeypatch.setenv("MOCA_REDIS_URL", "redis://production")
    assert "MOCA_REDIS_URL" not in run_processes._environment()


def test_cpu_of_somebody_elses_server_is_unknown():
    assert cpu_seconds(Server("http://x", None)) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_does_not_end_is_killed_with_what_it_started(monkeypatch):
    monkeypatch.setattr(run_processes, "STOP_S", 0.2)
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code = f"{deaf}import subprocess, sys\n"
    code += "store = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    code += "print(store.pid, flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        store = int(child.stdout.readline())
        run_processes._stop(child)
        assert child.wait() == -signal.SIGKILL
        give_up = time.monotonic() + 10
        while time.monotonic() < give_up and run_processes._role(store) != "ended":
            time.sleep(0.02)
        assert run_processes._role(store) == "ended"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_cpu_of_a_child_that_ended_still_counts():
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        seen = [0.0]
        while seen[-1] < 0.4 or run_processes._family(Server("", child.pid)).keys() != {child.pid}:
            seen.append(sum(cpu_seconds(Server("", child.pid)).values()))
            time.sleep(0.02)
        assert sum(cpu_seconds(Server("", child.pid)).values()) >= 0.4
    finally:
        child.communicate(b"\n")


def test_no_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(run_processes, "PROC", tmp_path)
    assert cpu_seconds(Server("http://x", 1)) == {}
    assert run_processes.machine_busy_s() is None


def test_a_busy_machine_is_told():
    result = serving.ServeBench(1, 1, "gaussian")
    for side in (result.service, result.echo):
        side.reports.append(Report(10, {}, 1.0, 0.0, {}))
        side.other_cores.append(0.6)
    assert any("other processes used 0.6" in str(line) for line in serving.report_lines([result]))


async def test_open_loop_counts_from_the_time_a_request_was_due():
    """One connection, 50 ms for each answer, and a request every 20 ms."""

    async def answer(reader, writer):
        for number in range(10):
            await reader.readuntil(b'{"y": 1.5}')
            await asyncio.sleep(0.05)
            status = b"429 Too" if number % 2 else b"200 OK"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")

    async with tcp_server(answer) as port:
        made = Job("127.0.0.1", port, ["/"], ['{"y": 1.5}'], connections=1)
        found = await open_loop.run(open_loop.OpenJob([made], [(50.0, 0.1), (50.0, 0.1)]))
    assert found.status == [200, 429] * 5
    assert found.due_s == pytest.approx([0.02 * number for number in range(10)], abs=0.001)
    # The last one was due after 0.18 s, and was answered after ten times 0.05 s.
    assert found.latency_s[-1] > 10 * 0.05 - 0.18 - 0.01
    assert found.latency_s[-1] > found.latency_s[0]


async def test_open_loop_counts_what_is_lost(monkeypatch):
    monkeypatch.setattr(open_loop, "DRAIN_S", 0.2)

    async def cut(reader, writer):
        await reader.readuntil(b"\r\n\r\n")

    async with tcp_server(cut) as port:
        made = Job("127.0.0.1", port, ["/"], ["{}"], connections=3)
        found = await open_loop.run(open_loop.OpenJob([made], [(100.0, 0.05)]))
    assert found.status == [open_loop.LOST] * 5
    made = Job("127.0.0.1", free_port(), ["/"], ["{}"], connections=3)
    found = await open_loop.run(open_loop.OpenJob([made], [(100.0, 0.05)]))
    assert found.status == [open_loop.LOST] * 5


def test_evaluation_of_an_overload():
    due = [0.001 * number for number in range(3000)]
    status = [429 if at < 1.2 and number % 3 else 200 for number, at in enumerate(due)]
    slow = [0.4 if at < 1.7 else 0.02 for at in due]
    latency = [0.01 if each == 429 else s for each, s in zip(status, slow, strict=True)]
    requests = open_loop.Requests(due, latency, status, 0.0, 0.0)
    found = overloading.evaluate(requests, capacity=400.0, factor=2.5, overload_s=1.0)
    assert len(found.overload.accepted_s) == 334
    assert found.overload.latency_ms()["p99"] == 400
    assert found.overload.latency_ms(shed=True)["p99"] == 10
    assert found.goodput == pytest.approx(0.5, abs=0.01)  # of which 0.6 s came in time
    assert found.recovery_s == 1.0
    lines = "\n".join(overloading.report_lines(found))
    assert "2.5 x capacity, 1 s: served 200/s, p50 400 ms" in lines
    assert "recovered 1 s after the overload" in lines


def test_bench_overload(monkeypatch):
    monkeypatch.setattr(overloading, "moca_server", pretender)
    monkeypatch.setattr(overloading, "CAPACITY_S", 0.6)
    monkeypatch.setattr(overloading, "CALM_S", 1.0)
    console = quiet()
    result = bench_overload(factor=0.2, seconds=1.0, streams=8, console=console)
    assert result.overload.failed == result.calm.failed == {}
    assert 0.05 < result.goodput < 0.25
    assert "goodput: " in console.file.getvalue()


@pytest.mark.parametrize("bad", [{"factor": 0}, {"seconds": 0}, {"streams": 0}])
def test_bench_overload_refuses(bad):
    with pytest.raises(BenchError, match="expected"):
        bench_overload(**bad, console=quiet())


# --- bench step -----------------------------------------------------------------------------


SMALL = {"batches": [1, 3], "max_hypotheses": 8, "early": 20, "late": 60, "rounds": 3}


@pytest.mark.parametrize("model", ["gaussian", "multivariate", "categorical", "linear", "alpaca"])
def test_bench_step(model):
    console = quiet()
    result = bench_step(models=[model], console=console, **SMALL)
    ways = {each.by for each in result.steps if each.name == model and each.max_hypotheses == 8}
    assert ways == ({"eager", "compiled"} if find_spec("numba") else {"eager"})
    own = [each for each in result.steps if each.max_hypotheses == 8]
    assert len(own) == len(result.lives) * 2 * 2  # batches, with a summary and without
    assert all(len(each.us) == 3 and min(each.us) > 0 for each in result.steps)
    assert all(len(each.ratios) == 3 for each in result.lives + result.peers)
    told = result.summary()
    assert told["steps"][0]["median"] == result.steps[0].interval().median
    assert (told["early"], told["late"]) == (20, 60)
    assert "Late over early" in console.file.getvalue()


def test_bench_step_compares_with_other_packages(monkeypatch):
    """Packages are named by what is set; one that is missing is said to be."""

    class Detector:
        def update(self, y):
            assert isinstance(y, float)

    present = peers.Peer("present", "its default", "json", lambda module: Detector().update)
    missing = peers.Peer("missing", "its default", "no_such_package", lambda module: None)
    monkeypatch.setattr(peers, "PEERS", (present, missing))
    console = quiet()
    result = bench_step(models=["gaussian"], console=console, **SMALL)
    assert result.missing == ["missing"]
    assert "missing: not installed" in console.file.getvalue()
    assert [each.streams for each in result.steps if each.name == "present"] == [1, 3]
    if find_spec("numba"):
        assert {each.of for each in result.peers} == {"present, its default"}
        assert "gaussian, 200 hypotheses" in {each.over for each in result.peers}


def test_intervals_are_of_the_rounds():
    found = interval([float(each) for each in range(11)])
    assert found == (5.0, 1.0, 9.0)
    assert str(found) == "5.00 (1.00-9.00)"


def test_late_streams_are_later():
    """A subject's streams stay where they are while they are timed."""
    subject = Subject("gaussian", 2, 8)
    subject.walk(30)
    before = [each.clone() for each in leaves(subject.state)]
    for way in subject.ways:
        subject.time_us(way, True, 4)
    assert all(map(torch.equal, before, leaves(subject.state)))
    assert subject.state.seq.tolist() == [30, 30]


@pytest.mark.parametrize(
    "bad",
    [
        {"models": ["none"]},
        {"early": 9, "late": 9},
        {"rounds": 0},
        {"batches": []},
        {"batches": [0]},
    ],
)
def test_bench_step_refuses(bad):
    with pytest.raises(BenchError, match="expected"):
        bench_step(**bad, console=quiet())


# --- bench gpu ------------------------------------------------------------------------------


def test_bench_gpu_says_that_there_is_no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BenchError, match="expected a CUDA device, got none"):
        bench_gpu(console=quiet())


def test_bench_gpu_measures_any_device(monkeypatch):
    """The same code on the CPU, which takes no time of a device."""
    monkeypatch.setattr("service.bench.step.COPY_BYTES", 1 << 16)
    console = quiet()
    found = bench_gpu(
        models=["gaussian", "alpaca"], batches=[2, 3], max_hypotheses=8, early=20, rounds=2,
        device="cpu",
        console=console,
    )  # fmt: skip
    assert found.bytes_per_s > 0
    assert sorted({each.streams for each in found.steps}) == [2, 3]
    first = found.steps[0]
    assert first.by == "eager"
    assert len(first.us) == 2
    moved = 2 * first.state_bytes
    assert first.shares(1e9)[0] == pytest.approx(moved / (1e-6 * first.us[0] * 2) / 1e9)
    json.dumps(found.summary())
    assert "gaussian" in console.file.getvalue()


@pytest.mark.parametrize("bad", [{"models": ["unknown"]}, {"rounds": 0}, {"batches": []}])
def test_bench_gpu_refuses(bad):
    with pytest.raises(BenchError, match="expected"):
        bench_gpu(**{"device": "cpu", **bad}, console=quiet())
