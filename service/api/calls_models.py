"""Calls about models, and about streams that change theirs."""

from __future__ import annotations

from service.api import documents, documents_reads, openapi, routes_service
from service.api import routes_models as models
from service.api.call import BODY, Call
from service.questions import CanaryForm, MovesForm

CANARY = "/v1/models/{name}/canary"
_model = (openapi.MODEL,)
MODEL_CALLS = (
    Call("GET", "/v1/models", routes_service.list_models, documents.Models, tag="models"),
    Call(
        "GET",
        "/v1/models/{name}",
        routes_service.get_model,
        documents.ModelDetail,
        (404,),
        (openapi.MODEL,),
        tag="models",
    ),
    Call(
        "GET",
        CANARY,
        models.get_canary,
        documents_reads.Canary,
        (404, 503),
        _model,
        tag="models",
    ),
    Call(
        "PUT",
        CANARY,
        models.put_canary,
        documents_reads.Canary,
        (*BODY, 404, 422, 503),
        _model,
        body=openapi.body(openapi.ref(CanaryForm)),
        tag="models",
        scope="admin",
    ),
    Call(
        "DELETE",
        CANARY,
        models.delete_canary,
        None,
        (404, 503),
        _model,
        tag="models",
        status=204,
        scope="admin",
    ),
    Call(
        "POST",
        "/v1/moves",
        models.move_streams,
        documents_reads.Moves,
        (*BODY, 422, 503),
        body=openapi.body(openapi.ref(MovesForm)),
        tag="models",
        scope="admin",
    ),
)
