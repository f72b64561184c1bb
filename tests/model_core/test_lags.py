"""Labels before as features."""

import torch

from model_core.upm.lags import push
from tests.model_core.case import tensor
from tests.model_core.regressions import lags_of


def run(values: list[float | None], order: int) -> list[list[float]]:
    """Lags before each label."""
    recent, lags, found = tensor([[0.0, 0.0]]), tensor([[0.0] * order]), []
    for value in values:
        found.append(lags[0].tolist())
        known = torch.tensor([value is not None])
        recent, lags = push(recent, lags, tensor([[value or 0.0]]), known)
    return found


def test_a_single_outlier_is_cut_and_a_lasting_jump_is_followed():
    before = [each[0] for each in run([0.5, 9.0, 0.0, -1.0, 8.0, 8.5, 8.0, 8.2], 1)]
    # 9 is cut to 2 above the larger of the two before; so is 8, but what follows it is not.
    assert before == [0.0, 0.5, 2.5, 0.0, -1.0, 2.0, 8.5, 8.0]


def test_a_missing_label_is_stood_in_for_by_the_last():
    assert run([1.0, None, 3.0, 0.0], 2) == [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [3.0, 1.0]]


def test_outputs_do_not_mix_and_agree_with_the_reference():
    generator = torch.Generator().manual_seed(0)
    y = 4 * torch.randn(30, 2, generator=generator, dtype=torch.float64)
    known = torch.rand(30, generator=generator) > 0.2
    recent, lags = y.new_zeros(1, 4), y.new_zeros(1, 6)
    for t, expected in enumerate(lags_of(y.numpy(), known.numpy(), 3)):
        assert lags.reshape(3, 2).tolist() == [each.tolist() for each in expected]
        recent, lags = push(recent, lags, y[t : t + 1], known[t : t + 1])


def test_an_output_that_lacks_is_stood_in_for_alone():
    generator = torch.Generator().manual_seed(1)
    y = 4 * torch.randn(30, 2, generator=generator, dtype=torch.float64)
    known = torch.rand(30, 2, generator=generator) > 0.3
    recent, lags = y.new_zeros(1, 4), y.new_zeros(1, 6)
    alone = [(y.new_zeros(1, 2), y.new_zeros(1, 3)) for _ in range(2)]
    filled = y.masked_fill(~known, torch.nan)
    for t in range(30):
        at = slice(t, t + 1)
        recent, lags = push(recent, lags, filled[at], known[at])
        alone = [push(*each, y[at, o : o + 1], known[at, o]) for o, each in enumerate(alone)]
        assert torch.equal(lags, torch.stack([each for _, each in alone], -1).flatten(1))
