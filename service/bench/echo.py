"""The yardstick: a bare FastAPI echo endpoint with one pydantic model, one uvicorn process."""

from __future__ import annotations

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
