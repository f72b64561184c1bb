"""The yardstick: a bare FastAPI echo endpoint with one pydantic model, one uvicorn process."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class EchoItem(BaseModel):
    """The same body that the service gets."""

    y: float


app = FastAPI()


@app.post("/echo")
async def echo(item: EchoItem) -> EchoItem:
    """Answer with what was sent."""
    return item


def main() -> None:
    """Serve on the loopback port given as the only argument."""
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
