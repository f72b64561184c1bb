"""Anomalies of the rows of a slab: their states, which are on the host wherever the rows are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model_core import anomaly
from model_core.readout import Readout
from model_core.upm.base import UnderlyingModel
from service.wire import Record, numbers
from service.worker.streams.chunks import Chunks

Floats = NDArray[np.float64]


class Anomalies:
    """A state of `model_core.anomaly` for each row, under the number that the row has."""

    def __init__(self, model: UnderlyingModel, chunk_rows: int) -> None:
        """Hold no row yet; chunk_rows: of a chunk of memory, at most."""
        self._model = model
        self._outputs = anomaly.outputs(model)
        self.size = anomaly.size(self._outputs)
        like = torch.empty(1, self.size, dtype=torch.float64)
        self.chunks = Chunks([like], chunk_rows * like.nbytes)

    def start(self, location: Sequence[float], scale: Sequence[float]) -> Floats:
        """State before any observation; location, scale: the stream's, empty if it has none."""
        return anomaly.begin(self._model, location, scale)

    def add(self, state: Floats) -> int:
        """Hold the state of one more row; returns the row."""
        row = self.chunks.reserve()
        self.put(row, state)
        return row

    def get(self, row: int) -> Floats:
        """State of a row, a copy."""
        states, place = self._place(row)
        state: Floats = states[place].copy()
        return state

    def put(self, row: int, state: Floats) -> None:
        """Put a state in place of a row's."""
        states, place = self._place(row)
        states[place] = state

    def observe(
        self, rows: Sequence[int], records: Sequence[Record], readouts: Sequence[Readout]
    ) -> list[float | None]:
        """Take one observation of each row in, in order; None for those without a label.

        A row that is named again has another one. What was refused counts as if it had not come.
        """
        if not rows:
            return []
        surprises = np.array(
            [-readout.log_score if readout.ok else math.nan for readout in readouts]
        )
        labels = np.full((len(rows), self._outputs), math.nan)
        if self._outputs:
            missing = [math.nan] * self._outputs
            labels[:] = [numbers(record.y) or missing for record in records]
        values = np.empty(len(rows))
        for chunk, places, at in self.chunks.places(rows):
            states = chunk.tensors[0].numpy()
            chosen = np.array(places, dtype=np.int64)
            values[at] = anomaly.observe_rows(states, chosen, surprises[at], labels[at])
        return [None if value != value else value for value in values.tolist()]

    def _place(self, row: int) -> tuple[Floats, int]:
        chunk, place = self.chunks.place(row)
        return chunk.tensors[0].numpy(), place
