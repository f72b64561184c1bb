"""Parse the request bodies of stream commands into wire commands."""

from __future__ import annotations

import secrets

from pydantic import TypeAdapter

from service import wire
from service.api.parsing.observations import MAX_POINTS, ObservationParser
from service.problems import FieldError, InvalidField
from service.schema.commands import (
    ActionForm,
    BeliefForm,
    ChangeForm,
    ModelForm,
    PredictionForm,
    VerdictForm,
    WhatIfForm,
)
from service.settings import Settings

MAX_SAMPLES = 1000  # draws at an input: a probability has a standard error of 0.016 at most
MAX_HORIZON = 100  # labels to come in one call, such as four days of hours
MAX_DRAWS = 100_000  # samples times inputs in one call
MAX_DIGITS = 15
_prediction = TypeAdapter(PredictionForm).validate_json
_action = TypeAdapter(ActionForm).validate_json
_belief = TypeAdapter(BeliefForm).validate_json
_what_if = TypeAdapter(WhatIfForm).validate_json
_model = TypeAdapter(ModelForm).validate_json
_feedback = TypeAdapter(VerdictForm).validate_json
_change = TypeAdapter(ChangeForm).validate_json


class CommandParser:
    """Parses the bodies of stream commands, with the limits of one process's settings."""

    def __init__(self, settings: Settings, observation_parser: ObservationParser) -> None:
        self._settings = settings
        self._observation_parser = observation_parser

    def prediction(self, stream: str, body: bytes) -> wire.Predict:
        """Parse a prediction request."""
        form = self._observation_parser.parsed(_prediction, body or b"{}")
        points = form.x or []
        errors = self._inputs(points, "x", MAX_POINTS)
        if form.horizon is not None and form.x is not None:
            errors.append(FieldError("body.horizon", "not allowed together with x"))
        if form.horizon is not None and form.components:
            errors.append(FieldError("body.horizon", "not allowed together with components"))
        if form.horizon is not None and form.horizon > MAX_HORIZON:
            errors.append(FieldError("body.horizon", f"expected at most {MAX_HORIZON}"))
        errors += self._draws(form.samples, max(len(points), form.horizon or 1))
        _raise(errors)
        return wire.Predict(
            stream,
            form.x,
            form.quantiles,
            form.samples,
            _seed(form.seed),
            form.components,
            form.elapsed,
            form.horizon or 0,
        )

    def action(self, stream: str, body: bytes) -> wire.Act:
        """Parse an action request."""
        form = self._observation_parser.parsed(_action, body)
        errors = self._inputs(form.candidates, "candidates", MAX_POINTS)
        count = {"thompson": 1, "optimistic": form.samples, "greedy": 0}[form.strategy]
        errors += self._draws(count, len(form.candidates))
        _raise(errors)
        seed = _seed(form.seed)
        return wire.Act(stream, form.candidates, form.strategy, max(count, 1), seed, form.elapsed)

    def belief(self, stream: str, body: bytes) -> wire.SetBelief:
        """Parse an override of the run-length belief."""
        fields = 2 * self._settings.max_hypotheses
        form = self._observation_parser.parsed(_belief, body, fields=fields)
        if form.belief is None and form.changepoint is None:
            _raise([FieldError("body", "expected `belief`, `changepoint` or both")])
        if form.belief is not None and len(form.belief) > self._settings.max_hypotheses:
            _raise([FieldError("body.belief", f"expected at most {self._settings.max_hypotheses}")])
        pairs = None
        if form.belief is not None:
            pairs = [(hypothesis.run_length, hypothesis.probability) for hypothesis in form.belief]
        return wire.SetBelief(stream, pairs, form.changepoint, form.seq)

    def what_if(self, stream: str, body: bytes) -> wire.WhatIf:
        """Parse a what-if request."""
        form = self._observation_parser.parsed(_what_if, body or b"{}")
        settings = self._observation_parser.named(form.settings, "body.settings")
        return wire.WhatIf(stream, settings, form.series, form.beliefs)

    def move(self, stream: str, body: bytes) -> wire.Move:
        """Parse a move to another model."""
        return wire.Move(stream, self._observation_parser.parsed(_model, body).model)

    def feedback(self, stream: str, body: bytes, event: str) -> wire.EventFeedback:
        """Parse feedback on an event, whose id is in the path."""
        if not event.isdecimal() or len(event) > MAX_DIGITS:
            raise InvalidField([FieldError("path.event", "expected the id of an event")])
        return wire.EventFeedback(
            stream, self._observation_parser.parsed(_feedback, body).change, int(event)
        )

    def change(self, stream: str, body: bytes) -> wire.EventFeedback:
        """Parse the report of a missed changepoint."""
        return wire.EventFeedback(
            stream, True, start=self._observation_parser.parsed(_change, body).start
        )

    def _inputs(self, inputs: list[list[float]], field: str, limit: int) -> list[FieldError]:
        errors = []
        if len(inputs) > limit:
            errors.append(FieldError(f"body.{field}", f"expected at most {limit} inputs"))
        for i, x in enumerate(inputs[:limit]):
            errors += self._observation_parser.too_long(x, f"body.{field}[{i}]")
        return errors

    def _draws(self, samples: int, points: int) -> list[FieldError]:
        limit = min(MAX_SAMPLES, MAX_DRAWS // max(1, points))
        if samples <= limit:
            return []
        return [FieldError("body.samples", f"expected at most {limit} with this many inputs")]


def _seed(seed: int | None) -> int:
    return secrets.randbits(62) if seed is None else seed


def _raise(errors: list[FieldError]) -> None:
    if errors:
        raise InvalidField(errors)
