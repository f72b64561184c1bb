"""Actions: one of several candidate inputs, chosen for the label that it promises."""

from __future__ import annotations

import msgspec
import torch

from model_core import actions
from model_core import filter as moca
from model_core.actions import Strategy
from service.unfit import UnfitModel, WarmingUp
from service.wire import Act, Record
from service.worker import delayed, hazards
from service.worker.checks import check_inputs
from service.worker.engine import Engine
from service.worker.observing import wake
from service.worker.stream import Stream


def act(engine: Engine, stream: Stream, command: Act) -> bytes:
    """Answer to POST actions: the candidate chosen, and the values it was the best of."""
    head, model = stream.live(), engine.catalogue.of(stream.live())
    takes_none = model.x_dim == 0 and head.x_dim is not None  # None: no input has come yet
    if takes_none or model.label == "class" or model.y_dim != 1:
        raise UnfitModel(
            f"actions need a model with inputs and one numeric label; {head.settings.model} has "
            f"x_dim {model.x_dim}, y_dim {model.y_dim} and labels of kind {model.label!r}"
        )
    check_inputs(command.candidates, "candidates", head.x_dim)
    wake(engine, [stream])
    if stream.slab is None:
        other = "" if model.scales_inputs else ", or make it with `location` and `scale`"
        raise WarmingUp(
            f"the stream is still warming up at seq {head.seq}: post observations first{other}",
            seq=head.seq,
        )
    slab, met = stream.slab, hazards.met(model, head.settings)
    coming = Record(head.seq, None, command.candidates[0], None, command.elapsed, head.told, *met)
    state, prior = slab.state(delayed.newest(engine, stream)), slab.row_prior(stream.row)
    grown, _ = moca.grow(state, prior, slab.inputs([coming]))
    candidates = torch.tensor([command.candidates], dtype=torch.float64, device=slab.device)
    strategy = Strategy(command.strategy, command.samples)  # type: ignore[arg-type]
    generators = actions.seeded([command.seed], slab.device)
    held = actions.hypotheses(grown)
    choice = actions.choose(model, held, candidates, strategy, generators)
    chosen = int(choice.chosen[0])
    answer = {
        "stream": stream.name,
        "seq": delayed.position(head),
        "model": head.settings.model,
        "strategy": command.strategy,
        "chosen": chosen,
        "candidate": command.candidates[chosen],
        "values": choice.values[0].tolist(),
        "seed": None if command.strategy == "greedy" else command.seed,
    }
    return msgspec.json.encode(answer)
