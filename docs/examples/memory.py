"""Measure the memory of streams in the store: start an empty `moca serve`, then run this file.

Without idempotency keys, whose answers would be kept for ten minutes and for 64 requests.
"""

import os
import random
import re
import time

import httpx

URL = os.environ.get("MOCA_URL", "http://127.0.0.1:8000")
STREAMS = 100
ANSWERS_KEPT_S = 75  # answers stay in the store for twice the request deadline
USED = re.compile(r"^moca_redis_used_memory_bytes (\S+)$", re.MULTILINE)


def used_bytes(http):
    """Memory of the store, once it keeps no answers any more."""
    time.sleep(ANSWERS_KEPT_S)
    return float(USED.search(http.get("/metrics").text)[1])


def main():
    """Print the memory of a stream after 200 observations, and with a full history of 2,000."""
    rng = random.Random(1)
    with httpx.Client(base_url=URL, timeout=60) as http:
        for model in ("averaged", "gaussian"):
            before = used_bytes(http)
            for observations in (200, 1800):
                for number in range(STREAMS):
                    path = f"/v1/streams/memory-{model}-{number}"
                    http.put(path, json={"model": model}).raise_for_status()
                    values = [{"y": rng.gauss(10, 1)} for _ in range(observations)]
                    http.post(f"{path}/observations", json=values).raise_for_status()
                size = (used_bytes(http) - before) / STREAMS / 1000
                print(f"{model}, {observations} more observations: {size:.0f} kB a stream")


if __name__ == "__main__":
    main()
