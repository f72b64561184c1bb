"""A process with an outbox on disk: adds what it has not added yet, and says how far it came."""

import sys
import time

from moca_client import Client, Outbox

STREAMS = 8


def main(url: str, path: str, length: int, added: int) -> None:
    with Client(url) as client, Outbox(client, path) as outbox:
        for at in range(added, length):
            outbox.add(f"box-{at % STREAMS}", observation(at))
            print(at + 1, flush=True)
            time.sleep(0.002)
        while not outbox.flush(1.0):
            pass
    print("done", flush=True)


def observation(at: int) -> dict:
    """An observation that differs from every other one."""
    time_ = f"2024-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z"
    return {"y": at * 0.25, "time": time_}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
