"""Send observations to a running deployment, kill containers under way, and look for losses.

    python deploy/trial/load.py --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 \\
        --kill moca_worker_1 --kill moca_api_1 --kill moca_redis_1

Each stream's observations are posted in order, each with an idempotency key of its own; what
fails or is cut is sent again to the next address, as a client of the service does. At the end
every observation has to have been applied once: exit status 0.
"""

import argparse
import asyncio
import math
import subprocess
import sys
import time

import httpx

PAUSE_S = 0.2
AGAIN = {429, 500, 502, 503, 504}


class Load:
    """Posts of one run, and what became of them."""

    def __init__(self, options):
        self.options = options
        self.run_id = f"{time.time_ns():x}"
        self.sent = self.repeated = self.applied = 0
        self.wrong, self.longest_s = [], 0.0
        self.marks = []  # how many sent observations somebody waits for, and what to tell them

    async def run(self):
        """Post everything."""
        options = self.options
        each = math.ceil(options.observations / options.streams)
        headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        async with httpx.AsyncClient(timeout=60, headers=headers) as client:
            began = time.monotonic()
            posts = (self._stream(client, i, each) for i in range(options.streams))
            await asyncio.gather(*self._kills(), *posts)
            self.seconds = time.monotonic() - began
            await asyncio.gather(*(self._check(client, i, each) for i in range(options.streams)))

    def _kills(self):
        for n, container in enumerate(self.options.kill, 1):
            share = n / (len(self.options.kill) + 1)
            yield self._kill(container, share * self.options.observations)

    async def _kill(self, container, at):
        self.marks.append((at, reached := asyncio.Event()))
        await reached.wait()
        command = self.options.engine.split()
        await asyncio.to_thread(self._engine, [*command, "kill", "--signal", "KILL", container])
        print(f"killed {container} after {self.sent} observations", flush=True)
        await asyncio.sleep(self.options.away_s)
        await asyncio.to_thread(self._engine, [*command, "start", container])

    @staticmethod
    def _engine(command):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)

    def _name(self, i):
        return f"try-{self.run_id}-{i}"

    async def _stream(self, client, i, each):
        for at in range(each):
            began = time.monotonic()
            answer = await self._post(client, i, at)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.sent += 1
            for mark, reached in self.marks:
                if self.sent >= mark:
                    reached.set()
            if answer.get("seq") != at:
                self.wrong.append(f"{self._name(i)}: observation {at} answered {answer}")

    async def _post(self, client, i, at):
        body = {"y": math.sin(at / 7) + (3 if at % 60 > 30 else 0)}
        headers = {"Idempotency-Key": f"{self.run_id}-{at}"}
        for attempt in range(10_000):
            url = self.options.url[(i + attempt) % len(self.options.url)]
            path = f"{url}/v1/streams/{self._name(i)}/observations"
            try:
                response = await client.post(path, json=body, headers=headers)
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code not in AGAIN:
                return response.json()
            self.repeated += 1
            await asyncio.sleep(PAUSE_S)
        raise SystemExit("the deployment did not come back")

    async def _check(self, client, i, each):
        url = self.options.url[i % len(self.options.url)]
        found = (await client.get(f"{url}/v1/streams/{self._name(i)}")).json()
        self.applied += found.get("seq", 0)
        if found.get("seq") != each:
            self.wrong.append(f"{self._name(i)}: {found} instead of {each} observations")


def positive(text):
    """Read a number from 1 on."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def parsed():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", action="append", help="address of an API; may be repeated")
    parser.add_argument(
        "--observations", type=positive, default=10_000, help="number of observations (10000)"
    )
    parser.add_argument("--streams", type=positive, default=50, help="concurrent streams (50)")
    parser.add_argument("--kill", action="append", default=[], help="container to kill and restart")
    parser.add_argument(
        "--away-s", type=float, default=1.0, help="seconds until it is restarted (1)"
    )
    parser.add_argument("--engine", default="docker", help="docker, podman or one with options")
    parser.add_argument("--api-key", default="", help="API key of the service")
    options = parser.parse_args()
    options.url = options.url or ["http://127.0.0.1:8000"]
    return options


def main():
    """Run, and say what was found."""
    load = Load(parsed())
    asyncio.run(load.run())
    rate = load.sent / load.seconds
    print(
        f"{load.sent} observations in {load.seconds:.1f} s ({rate:.0f}/s), {load.repeated} sent"
        f" again, longest {load.longest_s:.1f} s; {load.applied} applied"
    )
    for line in load.wrong[:20]:
        print(line, file=sys.stderr)
    return int(bool(load.wrong))


if __name__ == "__main__":
    sys.exit(main())
