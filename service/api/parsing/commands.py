"""Bodies of commands other than observations: their JSON, and the limits that are settings."""

from __future__ import annotations

import secrets
from typing import Any

from pydantic_core import from_json

from model_core.stream_settings import one_rule
from service import wire
from service.api.parsing.bodies import (
    MAX_POINTS,
    check_command,
    command_limits,
    malformed,
    too_long,
)
from service.problems import FieldError, InvalidField
from service.schema import commands as forms
from service.schema.observations import StreamForm
from service.settings import Settings

MAX_SAMPLES = 1000  # draws at an input: a probability has a standard error of 0.016 at most
MAX_HORIZON = 100  # labels to come in one call, such as four days of hours
MAX_DRAWS = 100_000  # samples times inputs in one call


class CommandParser:
    """Checks the forms of stream commands by the limits of one process's settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = command_limits(settings.max_hypotheses)

    def json(self, body: bytes) -> Any:
        """Return the value of the JSON of one command. Raises MalformedBody and InvalidField."""
        check_command(body, self._limits, "body")
        try:
            return from_json(body)
        except ValueError as error:
            raise malformed(f"Invalid JSON: {error}", "body") from None

    def settings(self, form: StreamForm, loc: str) -> dict[str, Any]:
        """Return the settings that a form sets; raise InvalidField for those over their limits."""
        errors = []
        for name, limit in (
            ("max_hypotheses", self._settings.max_hypotheses),
            ("history", self._settings.max_history),
        ):
            if getattr(form, name) > limit:
                errors.append(FieldError(f"{loc}.{name}", f"expected at most {limit}"))
        for name in ("location", "scale"):
            errors += too_long(getattr(form, name), self._settings.max_dimension, f"{loc}.{name}")
        if "false_alarm_every" in form.model_fields_set and None not in (
            form.false_alarm_every,
            form.confirm_after,
        ):
            detail = "not allowed together with confirm_after; give one of them, or null for one"
            errors.append(FieldError(f"{loc}.false_alarm_every", detail))
        if errors:
            raise InvalidField(errors)
        return one_rule(form.model_dump(exclude_unset=True))

    def prediction(self, stream: str, form: forms.PredictionForm) -> wire.Predict:
        """Return a prediction request."""
        points = form.x or []
        errors = self._inputs(points, "x", MAX_POINTS)
        if form.horizon is not None:
            others = [name for name in ("x", "components") if getattr(form, name)]
            wrong = [f"not allowed together with {name}" for name in others]
            wrong += [f"expected at most {MAX_HORIZON}"] if form.horizon > MAX_HORIZON else []
            errors += [FieldError("body.horizon", detail) for detail in wrong]
        errors += self._draws(form.samples, max(len(points), form.horizon or 1))
        _raise(errors)
        given = form.model_dump() | {"seed": _seed(form.seed), "horizon": form.horizon or 0}
        return wire.Predict(stream, **given)

    def action(self, stream: str, form: forms.ActionForm) -> wire.Act:
        """Return an action request."""
        errors = self._inputs(form.candidates, "candidates", MAX_POINTS)
        count = {"thompson": 1, "optimistic": form.samples, "greedy": 0}[form.strategy]
        errors += self._draws(count, len(form.candidates))
        _raise(errors)
        seed = _seed(form.seed)
        return wire.Act(stream, form.candidates, form.strategy, max(count, 1), seed, form.elapsed)

    def belief(self, stream: str, form: forms.BeliefForm) -> wire.SetBelief:
        """Return an override of the run-length belief."""
        if form.belief is None and form.changepoint is None:
            _raise([FieldError("body", "expected `belief`, `changepoint` or both")])
        if form.belief is not None and len(form.belief) > self._settings.max_hypotheses:
            _raise([FieldError("body.belief", f"expected at most {self._settings.max_hypotheses}")])
        pairs = None
        if form.belief is not None:
            pairs = [(hypothesis.run_length, hypothesis.probability) for hypothesis in form.belief]
        return wire.SetBelief(stream, pairs, form.changepoint, form.seq)

    def exclusion(self, stream: str, form: forms.ExclusionForm) -> wire.Exclude:
        """Return a request to exclude observations from learning."""
        if (form.event is None) == (form.start is None):
            _raise([FieldError("body", "expected `event` or `start`, one of them")])
        return wire.Exclude(stream, **form.model_dump())

    def what_if(self, stream: str, form: forms.WhatIfForm) -> wire.WhatIf:
        """Return a what-if request."""
        settings = self.settings(form.settings, "body.settings")
        return wire.WhatIf(stream, settings, form.series, form.beliefs)

    def _inputs(self, inputs: list[list[float]], field: str, limit: int) -> list[FieldError]:
        errors = []
        if len(inputs) > limit:
            errors.append(FieldError(f"body.{field}", f"expected at most {limit} inputs"))
        for i, x in enumerate(inputs[:limit]):
            errors += too_long(x, self._settings.max_dimension, f"body.{field}[{i}]")
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
