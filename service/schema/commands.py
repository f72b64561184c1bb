"""Request schemas of stream commands (shape only).

Limits that are settings are checked in `service.api.parsing.bodies`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr

from service.models.catalogue import NAME, REFERENCE
from service.schema.observations import (
    FIRST,
    WHOLE,
    Elapsed,
    Form,
    Number,
    Numbers,
    Probability,
    Seq,
    StreamForm,
)
from service.wire import tags

MAX_QUANTILES = 99
LEVEL = Field(ge=1e-6, le=0.999999)  # of a quantile: one far out takes a thousand times as long
MAX_BELIEFS = 500
MAX_HORIZON = 100  # labels to come in one call, such as four days of hours
MAX_NAME = 64  # characters of a regime's name
BELIEF_TOLERANCE = 1e-6  # of a sum of probabilities
SinceLast = Annotated[Elapsed, Field(description="time from the last observation to this one")]
Excluded = Annotated[StrictBool, Field(description="false: they count again")]
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63), WHOLE]


class PredictionForm(
    Form,
    json_schema_extra={
        "examples": [{"x": [[0.1], [0.2]], "quantiles": [0.05, 0.95], "samples": 3}, {}]
    },
):
    """Where to predict the next label, and which parts of the distribution to return."""

    x: Annotated[list[Numbers], Field(min_length=1), FIRST] | None = Field(
        None, description="inputs; omit for models without an input"
    )
    quantiles: Annotated[list[Annotated[Number, LEVEL]], Field(max_length=MAX_QUANTILES), FIRST] = (
        Field([0.05, 0.5, 0.95], description="quantile levels to return")
    )
    samples: Annotated[StrictInt, Field(ge=0), WHOLE] = Field(
        0, description="samples to draw at each input"
    )
    seed: Seed | None = Field(None, description="seed of the samples; default: a new one")
    components: StrictBool = Field(False, description="whether to return the mixture components")
    elapsed: SinceLast = 1.0
    horizon: Annotated[StrictInt, Field(ge=1, le=MAX_HORIZON), WHOLE] | None = Field(
        None,
        description="forecast horizon in steps, for models without an input",
    )


class ActionForm(
    Form,
    json_schema_extra={
        "examples": [{"candidates": [[0.0, 1.0], [1.0, 0.0]], "strategy": "thompson"}]
    },
):
    """Candidate inputs of the next observation, and how to choose among them."""

    candidates: Annotated[list[Numbers], Field(min_length=1), FIRST] = Field(
        description="candidate inputs; a larger label is better"
    )
    strategy: Literal["thompson", "optimistic", "greedy"] = Field(
        "thompson",
        description="`thompson`: best under one sampled function; `optimistic`: best under several "
        "sampled functions; `greedy`: best mean of the mixture",
    )
    samples: Annotated[StrictInt, Field(ge=1), WHOLE] = Field(
        3, description="functions sampled by the `optimistic` strategy"
    )
    seed: Seed | None = Field(
        None, description="seed of the samples; default: a new one, returned in the answer"
    )
    elapsed: SinceLast = 1.0


class HypothesisForm(Form):
    """Probability of one run length."""

    run_length: Annotated[StrictInt, Field(ge=0, le=2**53), WHOLE] = Field(
        description="0: the last observation started the regime"
    )
    probability: Probability


def check_selector(text: str) -> str:
    """Return a selector; raises ValueError for text that is none."""
    tags.parse(text)
    return text


def _check_belief(belief: list[HypothesisForm]) -> list[HypothesisForm]:
    total = math.fsum(hypothesis.probability for hypothesis in belief)
    if abs(total - 1) > BELIEF_TOLERANCE:
        raise ValueError(f"probabilities sum to {total:.9g}, expected 1")
    if len({hypothesis.run_length for hypothesis in belief}) < len(belief):
        raise ValueError("duplicate run length")
    return belief


class BeliefForm(
    Form,
    json_schema_extra={
        "examples": [
            {"belief": [{"run_length": 4, "probability": 1.0}]},
            {"changepoint": 1.0, "seq": 412},
        ]
    },
):
    """Override of the run-length belief after the last observation."""

    belief: (
        Annotated[list[HypothesisForm], Field(min_length=1), FIRST, AfterValidator(_check_belief)]
        | None
    ) = Field(
        None,
        description="run lengths among those of GET run-length; run lengths that are not named get "
        "probability 0; default: the current belief",
    )
    changepoint: Probability | None = Field(
        None,
        description="probability that the regime changes just before the next observation",
    )
    seq: Seq | None = Field(
        None, description="expected position; 409 if the stream is at another one"
    )


class WhatIfForm(
    Form,
    json_schema_extra={
        "examples": [{"settings": {"hazard": 0.002}}, {"settings": {"model": "averaged"}}]
    },
):
    """Settings to try on the retained history; default: those of the stream."""

    settings: StreamForm = Field(default_factory=lambda: StreamForm.model_validate({}))
    series: StrictBool = Field(
        False, description="whether to return the scores of each observation"
    )
    beliefs: Annotated[StrictInt, Field(ge=0, le=MAX_BELIEFS), WHOLE] = Field(
        0, description="number of last observations to return the run-length belief for"
    )


class ModelForm(Form, json_schema_extra={"examples": [{"model": "averaged"}]}):
    """The model to move the stream to."""

    model: Annotated[StrictStr, Field(pattern=REFERENCE)] = Field(
        description="NAME@VERSION, or NAME for its highest version"
    )


class RegimeForm(Form, json_schema_extra={"examples": [{"name": "night shift"}]}):
    """The name of a remembered regime."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=MAX_NAME)] | None = Field(
        description="what people call it; null: it has no name"
    )


class VerdictForm(Form, json_schema_extra={"examples": [{"change": False}]}):
    """Feedback on an event."""

    change: StrictBool = Field(
        description="feedback: true confirms the changepoint, false rejects it"
    )


class ChangeForm(Form, json_schema_extra={"examples": [{"start": 412}]}):
    """A missed change, without an event."""

    start: Seq = Field(description="`seq` of the first observation of the new regime")


class ExclusionForm(
    Form, json_schema_extra={"examples": [{"event": 3}, {"start": 412, "end": 480}]}
):
    """Observations to exclude from learning, or to have count again."""

    event: Annotated[StrictInt, Field(ge=1), WHOLE] | None = Field(
        None, description="the change that they begin with; or else `start`"
    )
    start: Seq | None = Field(None, description="`seq` of the first of them")
    end: Seq | None = Field(
        None,
        description="`seq` of the first that is none of them; default: the start of the next "
        "confirmed change, or all so far",
    )
    excluded: Excluded = True


class IncidentExclusionForm(Form, json_schema_extra={"examples": [{"excluded": True}]}):
    """Whether the changes of an incident are excluded from learning."""

    excluded: Excluded = True


class WindowForm(
    Form,
    json_schema_extra={
        "examples": [
            {
                "start": "2024-05-04T22:00",
                "end": "2024-05-05T02:00",
                "time_zone": "Europe/Berlin",
                "repeat": "FREQ=WEEKLY;BYDAY=SA",
                "match": ['{job="db"}'],
            },
            {"start": "2024-12-24", "end": "2024-12-27", "note": "holidays"},
        ]
    },
):
    """A window of the calendar."""

    start: Annotated[StrictStr, Field(max_length=40)] = Field(
        description="local time of its first occurrence, or a date: its midnight"
    )
    end: Annotated[StrictStr, Field(max_length=40)] = Field(
        description="local time, which is not part of it; at most 366 days later"
    )
    time_zone: Annotated[StrictStr, Field(max_length=100)] = Field(
        "UTC", description="of IANA, such as Europe/Berlin"
    )
    repeat: Annotated[StrictStr, Field(max_length=200)] = Field(
        "",
        description="rule of RFC 5545 that begins at `start`: FREQ=DAILY, WEEKLY, MONTHLY or "
        "YEARLY, with INTERVAL, BYDAY, COUNT or a local UNTIL; empty: once",
    )
    match: Annotated[
        list[Annotated[StrictStr, AfterValidator(check_selector)]], Field(max_length=10)
    ] = Field([], description=f"selectors of streams such as `{tags.EXAMPLE}`; none: all streams")
    note: Annotated[StrictStr, Field(max_length=500)] = Field("", description="for people")


class CanaryForm(Form, json_schema_extra={"examples": [{"version": "4", "share": 0.1}]}):
    """A canary: the version that a share of a model's new streams is created with."""

    version: Annotated[StrictStr, Field(pattern=f"^{NAME}$")]
    share: Probability = Field(
        description="share of new streams, among those that name the model without a version"
    )


class MovesForm(Form, json_schema_extra={"examples": [{"prefix": "pump-", "model": "pump@4"}]}):
    """Streams to move to another model, page by page."""

    prefix: Annotated[StrictStr, Field(max_length=200)] = Field(
        description="prefix of the stream ids; empty: all"
    )
    model: Annotated[StrictStr, Field(pattern=REFERENCE)]
    cursor: Annotated[StrictStr, Field(max_length=200)] | None = Field(
        None, description="`cursor` of the previous answer"
    )
    limit: Annotated[StrictInt, Field(ge=1, le=1000), WHOLE] = Field(
        100, description="streams per page"
    )
