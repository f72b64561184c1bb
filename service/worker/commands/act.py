"""Actions: one of several candidate inputs, chosen for the label that it promises."""

from __future__ import annotations

import msgspec

from moca_client.responses import Action
from model_core import actions
from model_core import filter as moca
from model_core.actions import Strategy
from model_core.lazy import torch
from service.problems import UnfitModel, WarmingUp
from service.wire import Act
from service.worker.filtering import delayed_labels
from service.worker.filtering.pipeline import StoredPipeline
from service.worker.streams import step_inputs
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.validation import check_inputs


def act(engine: Engine, stream: Stream, command: Act) -> bytes:
    """Answer to POST actions: the candidate chosen, and the values it was the best of."""
    engine.need_torch()
    head = stream.live()
    model = engine.catalogue.of(head)
    takes_none = model.x_dim == 0 and head.x_dim is not None  # None: no input has come yet
    if takes_none or model.label == "class" or model.y_dim != 1:
        raise UnfitModel(
            "actions require a model with inputs and one numeric label; "
            f"{head.settings.model} has x_dim {model.x_dim}, y_dim {model.y_dim} and labels "
            f"of kind {model.label!r}"
        )
    check_inputs(command.candidates, "candidates", head.x_dim)
    StoredPipeline(engine).wake([stream])
    if stream.slab is None:
        other = "" if model.scales_inputs else ", or create it with `location` and `scale`"
        raise WarmingUp(
            f"the stream is still warming up at seq {head.seq}: post more observations{other}",
            seq=head.seq,
        )
    slab = stream.slab
    coming = step_inputs.coming(model, head, command.elapsed, command.candidates[0])
    state = slab.state(delayed_labels.newest(engine, stream))
    grown, _ = moca.grow(state, slab.prior(stream.row), step_inputs.inputs(slab, [coming]))
    candidates = torch.tensor([command.candidates], dtype=torch.float64, device=slab.device)
    strategy = Strategy(command.strategy, command.samples)  # type: ignore[arg-type]
    generators = actions.seeded([command.seed], slab.device)
    held = actions.hypotheses(grown)
    choice = actions.choose(model, held, candidates, strategy, generators)
    chosen = int(choice.chosen[0])
    answer = Action(
        stream=stream.name,
        seq=delayed_labels.position(head),
        model=head.settings.model,
        strategy=command.strategy,
        chosen=chosen,
        candidate=command.candidates[chosen],
        values=(choice.values[0] + stream.offset(len(head.pending))).tolist(),
        seed=None if command.strategy == "greedy" else command.seed,
    )
    return msgspec.json.encode(answer)
