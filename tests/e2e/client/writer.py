"""A process with an outbox on disk: adds what it has not added yet, and says how far it came."""

import sys
import time

from service.client import Client, Outbox


def main(url: str, path: str, streams: int, length: int, per_second: float) -> None:
    with Client(url) as client, Outbox(client, path) as outbox:
        for line in sys.stdin:  # how many of the series are in the file already
            began = int(line)
            break
        for at in range(began, length):
            outbox.add(f"box-{at % streams}", {"y": at * 0.25, "time": stamp(at)})
            print(at + 1, flush=True)
            time.sleep(1 / per_second)
        while not outbox.flush(1.0):
            pass
    print("done", flush=True)


def stamp(at: int) -> str:
    """Tell each observation from every other one."""
    return f"2024-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
