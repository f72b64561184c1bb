"""The classifier and the recurrent model: blocks, gradients, torch's own cell, long streams."""

from __future__ import annotations

import math
import resource
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core.encoder import Mlp
from model_core.filter import Inputs
from model_core.segment_matrix import Sequences, segment_matrix
from model_core.upm.base import UnderlyingModel
from tests.model_core.cases import BY_NAME, Case, inputs, irregular, run, series, tensor

PCOC, LSTM = BY_NAME["pcoc-3"], BY_NAME["lstm-2"]
LEARNED = pytest.mark.parametrize("case", [PCOC, LSTM], ids=lambda case: case.name)
ROWS, STARTS = 9, 4


def several(case: Case, batch: int = 2):
    """Statistics (B, S, ...) of starts that have seen different pasts; features and labels."""
    many = [series(case, seed, ROWS + STARTS) for seed in range(batch)]
    x, y = (tensor([getattr(each, name) for each in many]) for name in ("x", "y"))
    phi = case.model.encode(x, tensor([]))
    stats = type(case.prior().stats)(
        *(each.repeat(1, STARTS, *[1] * (each.dim() - 2)) for each in case.prior(batch).stats)
    )
    for t in range(STARTS):  # with outliers about, a past may hold parts of observations
        weight = tensor([[float(s > t) * 0.75 for s in range(STARTS)]] * batch)
        stats = case.model.update(stats, phi[:, t], y[:, t], weight)
    return stats, phi[:, STARTS:], y[:, STARTS:]


@LEARNED
def test_a_block_is_its_rows_one_by_one(case):
    stats, phi, y = several(case)
    weight = tensor(irregular(2, STARTS, ROWS, seed=3) > -0.5)
    block = case.model.block(stats, phi, y, weight)
    plain = UnderlyingModel.block(case.model, stats, phi, y, weight)
    torch.testing.assert_close(block.log_label, plain.log_label, atol=1e-12, rtol=1e-12)
    assert (block.log_input is None) == (plain.log_input is None)
    if plain.log_input is not None:
        torch.testing.assert_close(block.log_input, plain.log_input, atol=1e-12, rtol=1e-12)
    for a, b in zip(block.stats, plain.stats, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@LEARNED
def test_a_weight_of_nothing_changes_nothing(case):
    stats, phi, y = several(case)
    zero = torch.zeros(2, STARTS, dtype=torch.float64)
    for label in (y[:, 0], 0 * y[:, 0] + 1e6):
        after = case.model.update(stats, phi[:, 0], label, zero)
        assert all(torch.equal(a, b) for a, b in zip(after, stats, strict=True))


def test_part_of_an_observation_is_between_none_and_all():
    stats, phi, y = several(LSTM)
    one = torch.ones(2, STARTS, dtype=torch.float64)
    whole = LSTM.model.update(stats, phi[:, 0], y[:, 0], one)
    part = LSTM.model.update(stats, phi[:, 0], y[:, 0], 0.3 * one)
    for old, new, between in zip(stats, whole, part, strict=True):
        torch.testing.assert_close(between, 0.7 * old + 0.3 * new, atol=1e-14, rtol=0)


def test_class_probabilities_sum_to_one():
    one = series(PCOC, 5, 60, outlier_rate=[0.0, 0.2])
    for step in run(PCOC, [one], 12):
        each = step.info.predictive.components.mean().sum(-1)
        torch.testing.assert_close(each, torch.ones_like(each), atol=1e-13, rtol=0)
        total = step.info.predictive.mean().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-12, rtol=0)


@pytest.mark.parametrize("label", [-1.0, 3.0, 0.5, math.nan])
def test_a_label_that_is_no_class_is_refused(label):
    """As a step that is not finite: the state stays, and no class was certain."""
    steps = run(PCOC, [series(PCOC, 9, 5, outlier_rate=0.1)], 8)
    now = steps[4].inputs._replace(y=tensor([[label]]))
    state, info = moca.step(PCOC.model, steps[3].state, PCOC.prior(), now)
    assert not info.ok.item()
    pairs = zip(moca.leaves(state), moca.leaves(steps[3].state), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_an_input_far_from_every_class_still_gets_probabilities():
    x = tensor([[1e8, -1e8, 1e8]])
    phi = PCOC.model.encode(x, tensor([]))
    mixture = PCOC.model.predictive(PCOC.prior().stats, phi)
    assert torch.isfinite(mixture.log_probability).all()
    assert mixture.mean().sum().item() == pytest.approx(1, abs=1e-12)


def test_the_cell_is_torchs_own():
    model, (stats, phi, y) = LSTM.model, several(LSTM)
    features, outputs, hidden = phi.shape[-1], y.shape[-1], stats.hidden.shape[-1]
    cell = torch.nn.LSTMCell(features + outputs, hidden, dtype=torch.float64)
    sizes = [each.shape for each in model.decoder.weights]
    layers = [torch.nn.Linear(b, a, dtype=torch.float64) for a, b in sizes]
    decoder = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, name).copy_(getattr(model, name))
        for layer, weight, bias in zip(
            layers, model.decoder.weights, model.decoder.biases, strict=True
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    state, one = stats, torch.ones(2, STARTS, dtype=torch.float64)
    h, c, before = (each.flatten(0, 1) for each in stats)
    for t in range(ROWS):
        z = phi[:, t].repeat_interleave(STARTS, 0)
        h, c = cell(torch.cat((z, before), -1), (h, c))
        mean, log_variance = decoder(torch.cat((h, z), -1)).chunk(2, -1)
        found = model.predictive(state, phi[:, t])
        expected = mean * model.y_scale + model.y_offset
        torch.testing.assert_close(found.loc.flatten(0, 1), expected, atol=1e-12, rtol=0)
        deviation = torch.exp(log_variance / 2) * model.y_scale
        torch.testing.assert_close(found.scale.flatten(0, 1), deviation, atol=1e-12, rtol=0)
        state = model.update(state, phi[:, t], y[:, t], one)
        before = ((y[:, t] - model.y_offset) / model.y_scale).repeat_interleave(STARTS, 0)
        torch.testing.assert_close(state.hidden.flatten(0, 1), h, atol=1e-12, rtol=0)
        torch.testing.assert_close(state.cell.flatten(0, 1), c, atol=1e-12, rtol=0)


def parameters(model: UnderlyingModel) -> dict[str, torch.Tensor]:
    """Its tensors, those of its networks among them; not the scalings, which nobody learns."""
    found = {}
    for field in fields(model):
        value = getattr(model, field.name)
        if isinstance(value, torch.Tensor) and not field.name.startswith(("x_", "y_")):
            found[field.name] = value
        for part in ("weights", "biases"):
            for i, each in enumerate(getattr(value, part, ())):
                found[f"{field.name}.{part}.{i}"] = each
    return found


def rebuilt(model: UnderlyingModel, values: dict[str, torch.Tensor]) -> UnderlyingModel:
    changed = {name: each for name, each in values.items() if "." not in name}
    for name in ("encoder", "decoder"):
        network = getattr(model, name, None)
        if network is not None:
            parts = {
                part: tuple(values[f"{name}.{part}.{i}"] for i in range(len(network.weights)))
                for part in ("weights", "biases")
            }
            changed[name] = replace(network, **parts)
    return replace(model, **changed)


def score_by_step(model: UnderlyingModel, case: Case, one) -> torch.Tensor:
    case = case._replace(model=model)
    steps = run(case, [one], max_hypotheses=4)
    return torch.stack([step.info.log_score for step in steps if step.inputs.labelled.item()]).sum()


def score_by_block(model: UnderlyingModel, case: Case, one) -> torch.Tensor:
    """Everything absorbed from three starts on, in two blocks."""
    stats, steps = case._replace(model=model).prior().stats, len(one.y)
    stats = type(stats)(*(each.expand(-1, 3, *each.shape[2:]) for each in stats))
    phi = model.encode(tensor(one.x), tensor([])).unsqueeze(0)
    weight = torch.ones(1, 3, steps, dtype=torch.float64).triu()
    total = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 3), slice(3, steps)):
        block = model.block(stats, phi[:, rows], tensor(one.y[None, rows]), weight[..., rows])
        total, stats = total + block.log_label.sum(), block.stats
        if block.log_input is not None:
            total = total + block.log_input.sum()
    return total


def every_start(case: Case, steps: int, longest: int | None, batch: int = 2):
    """What the model knows of all starts, and the same matrix in blocks."""
    many = [series(case, seed, steps) for seed in range(batch)]
    x, y = (tensor([getattr(each, name) for each in many]) for name in ("x", "y"))
    phi = case.model.encode(x.flatten(0, 1), tensor([])).reshape(batch, steps, -1)
    prior, ones = case.prior(batch), torch.ones(batch, steps, dtype=torch.float64)
    found = case.model.every_start(prior.stats, phi, y, ones, longest).log_label
    return found, segment_matrix(case.model, prior, Sequences(x, y), 5, longest).label


DEEP = LSTM._replace(
    model=replace(
        LSTM.model,
        decoder=Mlp(
            (
                *LSTM.model.decoder.weights[:1],
                torch.eye(5).double(),
                *LSTM.model.decoder.weights[1:],
            ),
            (
                *LSTM.model.decoder.biases[:1],
                torch.ones(5).double(),
                *LSTM.model.decoder.biases[1:],
            ),
        ),
    )
)
PLAIN = LSTM._replace(
    model=replace(
        LSTM.model,
        decoder=Mlp(
            (0.3 * torch.ones(4, 7).double().tril(),),
            LSTM.model.decoder.biases[1:],
            output_activation="tanh",
        ),
    )
)


@pytest.mark.parametrize("case", [LSTM, DEEP, PLAIN], ids=["one", "two", "none"])
@pytest.mark.parametrize(("steps", "longest"), [(12, None), (12, 3), (12, 0), (1, None), (5, 30)])
def test_every_start_at_once_is_the_starts_in_blocks(case, steps, longest):
    found, expected = every_start(case, steps, longest)
    seen = torch.isfinite(expected)
    count = steps if longest is None else min(steps, longest + 1)
    assert seen.sum() == 2 * sum(steps - r for r in range(count))
    torch.testing.assert_close(found[seen], expected[seen], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("longest", [None, 2])
def test_gradients_of_every_start(longest):
    given = parameters(LSTM.model)
    leaves = [each.clone().requires_grad_() for each in given.values()]
    seen = torch.isfinite(every_start(LSTM, 6, longest)[1])
    weight = torch.randn(seen.shape, generator=torch.Generator().manual_seed(1)).double() * seen

    def of(*values, blocks=False):
        model = rebuilt(LSTM.model, dict(zip(given, values, strict=True)))
        both = every_start(LSTM._replace(model=model), 6, longest)
        # A product with what stands below the diagonal would be nan in the second.
        return (both[blocks].masked_fill(~seen, 0.0) * weight).sum()

    assert torch.autograd.gradcheck(of, leaves, fast_mode=True, atol=1e-6, rtol=1e-5)
    pairs = (torch.autograd.grad(of(*leaves, blocks=blocks), leaves) for blocks in (False, True))
    for name, a, b in zip(given, *pairs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-9, msg=name)


def test_every_start_is_the_same_without_gradients():
    found = every_start(LSTM, 9, None)[0]
    with torch.no_grad():
        assert torch.equal(every_start(LSTM, 9, None)[0], found)


@pytest.mark.slow
def test_every_start_of_a_long_sequence_is_held_length_by_length():
    """All states at once would be 3 GB."""
    big, steps = 64, 1400
    scaled = [tensor(irregular(4 * big, n, seed=n)) / big for n in (5, big)]
    weights = (tensor(irregular(4, big + 3, seed=1)) / big,)
    model = replace(
        LSTM.model,
        weight_ih=scaled[0],
        weight_hh=scaled[1],
        bias_ih=scaled[0][:, 0],
        bias_hh=scaled[0][:, 1],
        decoder=Mlp(weights, LSTM.model.decoder.biases[1:]),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.no_grad():
        phi, y = torch.zeros(1, steps, 3).double(), torch.zeros(1, steps, 2).double()
        prior = LSTM._replace(model=model).prior(1)
        found = model.every_start(prior.stats, phi, y, torch.ones(1, steps).double(), None)
    assert torch.isfinite(found[0].triu()).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB


def test_a_label_that_is_missing_leaves_every_start_to_blocks():
    stats, phi, y = LSTM.prior(2).stats, *several(LSTM)[1:]
    weight = torch.ones(2, ROWS, dtype=torch.float64)
    assert LSTM.model.every_start(stats, phi, y, weight, None) is not None
    weight[1, 3] = 0
    assert LSTM.model.every_start(stats, phi, y, weight, None) is None


@pytest.mark.one_in(2)
@LEARNED
@pytest.mark.parametrize("score", [score_by_step, score_by_block])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_gradients(case, score, rate):
    """Of the log score, with respect to every parameter; nothing in the filter cuts them off."""
    one = series(case, 6, 6, outlier_rate=rate, labelled=[True, True, False, True, True, True])
    given = parameters(case.model)
    leaves = [each.clone().requires_grad_() for each in given.values()]

    def of(*values):
        return score(rebuilt(case.model, dict(zip(given, values, strict=True))), case, one)

    gradients = torch.autograd.grad(of(*leaves), leaves)
    assert all(torch.isfinite(each).all() and each.abs().max() > 0 for each in gradients)
    assert torch.autograd.gradcheck(of, leaves, fast_mode=True, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("steps", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
@LEARNED
def test_a_long_stream_stays_finite(case, steps):
    """Random inputs, one input for ever, and outliers allowed for."""
    rng = np.random.default_rng(0)
    many = [case.draw(rng, steps) for _ in range(3)]
    many[1][0][:] = many[1][0][:1]
    x, y = (tensor([each[i] for each in many]) for i in (0, 1))
    one, rate = torch.ones(3, dtype=torch.float64), tensor([0.0, 0.0, 0.01])
    told = one > 0, 1e-3 * one[:, None], one, math.nan * one, rate
    prior = case.prior(3)
    state = moca.init(prior, 6)
    for t in range(steps):
        state, info = moca.step(case.model, state, prior, Inputs(x[:, t], y[:, t], *told))
        assert info.ok.all()
    assert all(torch.isfinite(each).all() for each in state.stats)


def test_running_sums_are_those_of_the_window():
    """However late: the posterior of the oldest hypothesis is that of all its observations."""
    steps = 1500
    one = series(PCOC, 7, steps, hazard=1e-6)._replace(
        y=np.arange(steps)[:, None] % 3.0, changepoint=np.resize([0.0], steps)
    )
    state = run(PCOC, [one], 4)[-1].state
    slot = state.belief.log_prob[0].argmax()
    assert state.belief.run_length[0, slot] == steps - 1
    phi = PCOC.reference.features(one.x)
    for j in range(3):
        rows = one.y[:, 0] == j
        assert state.stats.counts[0, slot, j] == rows.sum()
        expected = phi[rows].sum(0)
        np.testing.assert_allclose(state.stats.sums[0, slot, j], expected, rtol=1e-11, atol=1e-9)


def test_an_input_moves_the_belief_and_a_missing_label_adds_nothing():
    steps = run(PCOC, [series(PCOC, 8, 12, labelled=[True] * 11 + [False])], 20)
    before, now = steps[10].state, inputs([series(PCOC, 8, 12)], 11)
    grown, _ = moca.grow(before, PCOC.prior(), now)
    after = steps[11].state
    assert not torch.allclose(after.belief.log_prob[0, :12], grown.belief.log_prob[0, :12])
    assert all(torch.equal(a, b) for a, b in zip(after.stats, grown.stats, strict=True))
