"""Request bodies of what is asked or told of a stream, beside observations and settings: form only.

Bounds that are settings are checked in `service.api.asked`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from service.models import NAME, REFERENCE
from service.schemas import (
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

MAX_QUANTILES = 99
MAX_BELIEFS = 500
BELIEF_TOLERANCE = 1e-6  # of a sum of probabilities
Seed = Annotated[StrictInt, Field(ge=0, lt=2**63), WHOLE]


class PredictionForm(Form):
    """Where to predict the next label, and what of the distribution to return."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"x": [[0.1], [0.2]], "quantiles": [0.05, 0.95], "samples": 3}, {}]
        }
    )

    x: Annotated[list[Numbers], Field(min_length=1), FIRST] | None = Field(
        None, description="inputs; left out for models without one"
    )
    quantiles: Annotated[
        list[Annotated[Number, Field(gt=0, lt=1)]], Field(max_length=MAX_QUANTILES), FIRST
    ] = Field([0.05, 0.5, 0.95], description="levels of the quantiles to return")
    samples: Annotated[StrictInt, Field(ge=0), WHOLE] = Field(0, description="draws at each input")
    seed: Seed | None = Field(None, description="seed of the draws; default: a new one")
    components: StrictBool = Field(False, description="whether to return the mixture itself")
    elapsed: Elapsed = Field(1.0, description="time from the last observation to this one")
    horizon: Annotated[StrictInt, Field(ge=1), WHOLE] | None = Field(
        None,
        description="how many labels to come to predict, one after the other, for models without "
        "an input",
    )


class ActionForm(Form):
    """Candidates for the input of the coming observation, and how to choose among them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"candidates": [[0.0, 1.0], [1.0, 0.0]], "strategy": "thompson"}]
        }
    )

    candidates: Annotated[list[Numbers], Field(min_length=1), FIRST] = Field(
        description="inputs that may be chosen; the larger the label, the better"
    )
    strategy: Literal["thompson", "optimistic", "greedy"] = Field(
        "thompson",
        description="the best candidate under one function drawn from the mixture, under the "
        "best of several, or by the mixture's mean",
    )
    samples: Annotated[StrictInt, Field(ge=1), WHOLE] = Field(
        3, description="functions that the optimistic strategy draws"
    )
    seed: Seed | None = Field(
        None, description="seed of the draws; default: a new one, given back in the answer"
    )
    elapsed: Elapsed = Field(1.0, description="time from the last observation to this one")


class HypothesisForm(Form):
    """Probability of one run length."""

    run_length: Annotated[StrictInt, Field(ge=0, le=2**53), WHOLE] = Field(
        description="0: the last observation started the regime"
    )
    probability: Probability


def _check_belief(belief: list[HypothesisForm]) -> list[HypothesisForm]:
    total = math.fsum(each.probability for each in belief)
    if abs(total - 1) > BELIEF_TOLERANCE:
        raise ValueError(f"probabilities sum to {total:.9g}, expected 1")
    if len({each.run_length for each in belief}) < len(belief):
        raise ValueError("a run length stands twice")
    return belief


class BeliefForm(Form):
    """An override of the run-length belief, as after the last observation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"belief": [{"run_length": 4, "probability": 1.0}]},
                {"changepoint": 1.0, "seq": 412},
            ]
        }
    )

    belief: (
        Annotated[list[HypothesisForm], Field(min_length=1), FIRST, AfterValidator(_check_belief)]
        | None
    ) = Field(
        None,
        description="of run lengths that GET run-length shows; those not named get none; "
        "left out: as believed",
    )
    changepoint: Probability | None = Field(
        None,
        description="probability that the regime changes just before the observation to come",
    )
    seq: Seq | None = Field(
        None, description="expected position; refused with 409 when the stream is elsewhere"
    )


class WhatIfForm(Form):
    """Settings to try on what is retained; those not named are the stream's."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"settings": {"hazard": 0.002}}, {"settings": {"model": "averaged"}}]
        }
    )

    settings: StreamForm = Field(default_factory=lambda: StreamForm.model_validate({}))
    series: StrictBool = Field(
        False, description="whether to answer the scores of each observation"
    )
    beliefs: Annotated[StrictInt, Field(ge=0, le=MAX_BELIEFS), WHOLE] = Field(
        0, description="observations, the last ones, after which to answer the run-length belief"
    )


class ModelForm(Form):
    """The model that a stream is to go on under."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "averaged@1"}]})

    model: Annotated[StrictStr, Field(pattern=REFERENCE)] = Field(
        description="NAME@VERSION, or NAME for the highest version there is"
    )


class VerdictForm(Form):
    """A person's word on an event."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"change": False}]})

    change: StrictBool = Field(description="whether it was a change")


class ChangeForm(Form):
    """A change that no event was raised for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"start": 412}]})

    start: Seq = Field(description="`seq` of the first observation of the new regime")


class OverviewQuery(Form):
    """Query of streams at a glance."""

    prefix: Annotated[str, Field(max_length=200)] = Field(
        "", description="only ids that start with it"
    )
    cursor: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="`cursor` of the page before"
    )
    limit: Annotated[int, Field(ge=1, le=100)] = Field(50, description="streams in a page")
    labels: Annotated[int, Field(ge=0, le=64)] = Field(40, description="last labels of each")


class CanaryForm(Form):
    """A version that a share of a model's new streams is made with."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"version": "4", "share": 0.1}]})

    version: Annotated[StrictStr, Field(pattern=f"^{NAME}$")]
    share: Probability = Field(description="of the new streams whose model is named alone")


class MovesForm(Form):
    """Streams that are to go on under another model, page by page."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prefix": "pump-", "model": "pump@4"}]}
    )

    prefix: Annotated[StrictStr, Field(max_length=200)] = Field(
        description="of the ids of the streams; empty: all"
    )
    model: Annotated[StrictStr, Field(pattern=REFERENCE)]
    cursor: Annotated[StrictStr, Field(max_length=200)] | None = Field(
        None, description="`cursor` of the answer before"
    )
    limit: Annotated[StrictInt, Field(ge=1, le=1000), WHOLE] = Field(
        100, description="streams at a time"
    )
