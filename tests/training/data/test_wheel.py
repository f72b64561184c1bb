"""The switching wheel bandit against a literal reading of the paper."""

import math

import pytest
import torch

from training.data import wheel


def literal(x1: float, x2: float, action: int, delta: float) -> float:
    """Mean reward as the paper has it, one state and action at a time."""
    if action == 0:
        return 1.0
    if x1 > 0 and x2 > 0:
        own = 1
    elif x1 <= 0 and x2 > 0:
        own = 2
    elif x1 <= 0 and x2 <= 0:
        own = 3
    else:
        own = 4
    return 2.0 if action == own and math.hypot(x1, x2) > delta else 0.0


@pytest.fixture(scope="module")
def met():
    return wheel.world(torch.Generator().manual_seed(1), 40, 1000, 0.05)


def whole(source, bandits: int):
    """The one stream of a source."""
    return source.draw(torch.Generator(), 1, bandits * 562)


def test_mean_rewards_are_the_papers(met):
    states, delta = met.states[0, :300], met.delta[0, :300]
    for action in range(5):
        got = wheel.reward_mean(states, torch.full((300,), action), delta)
        pairs = zip(states.tolist(), delta.tolist(), strict=True)
        assert got.tolist() == [literal(*state, action, radius) for state, radius in pairs]


def test_best_mean_is_that_of_the_best_action(met):
    each = [
        wheel.reward_mean(met.states, torch.full(met.delta.shape, action), met.delta)
        for action in range(wheel.ACTIONS)
    ]
    assert torch.equal(wheel.best_mean(met.states, met.delta), torch.stack(each).amax(0))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ((0.5, 0.5), 1),
        ((-0.5, 0.5), 2),
        ((-0.5, -0.5), 3),
        ((0.5, -0.5), 4),
        ((0.0, 0.5), 2),
        ((0.5, 0.0), 4),
    ],
)
def test_quadrants(state, expected):
    assert wheel.quadrant(torch.tensor(state)).item() == expected


def test_at_the_radius_the_reward_is_still_low():
    state, delta = torch.tensor([0.6, 0.8]), torch.tensor(1.0)
    assert wheel.reward_mean(state, torch.tensor(1), delta) == wheel.LOW


def test_states_are_uniform_in_the_disc(met):
    radius = met.states.norm(dim=-1).flatten()
    assert radius.max() <= 1
    # The squared radius is uniform: a quarter of the area lies within half of the radius.
    for inside in (0.25, 0.5, 0.75):
        share = (radius.square() < inside).double().mean().item()
        assert share == pytest.approx(inside, abs=0.01)
    counts = torch.bincount(wheel.quadrant(met.states).flatten(), minlength=5) / radius.numel()
    torch.testing.assert_close(
        counts, torch.tensor([0.0, 0.25, 0.25, 0.25, 0.25]), atol=0.01, rtol=0
    )


def test_the_radius_is_drawn_anew_at_the_hazard_and_only_at_switches(met):
    assert met.switch[:, 0].all()
    assert met.switch[:, 1:].double().mean().item() == pytest.approx(0.05, abs=0.004)
    moved = met.delta[:, 1:] != met.delta[:, :-1]
    assert torch.equal(moved, met.switch[:, 1:])
    drawn = met.delta[met.switch]
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.03)
    assert drawn.var().item() == pytest.approx(1 / 12, abs=0.01)


def test_noise_is_of_the_papers_size(met):
    assert met.noise.std().item() == pytest.approx(0.5, abs=0.01)


def test_half_of_the_collected_actions_are_random_half_the_quadrants():
    batch = wheel.collected(torch.Generator().manual_seed(2), 1, 40_000, 0.02)
    states, hot = batch.x[0, :, :2], batch.x[0, :, 2:]
    assert torch.equal(hot.sum(-1), torch.ones(40_000, dtype=hot.dtype))
    action = hot.argmax(-1)
    own = (action == wheel.quadrant(states)).double().mean().item()
    assert own == pytest.approx(0.5 + 0.5 / 5, abs=0.01)
    assert (action == 0).double().mean().item() == pytest.approx(0.1, abs=0.01)


def test_the_streams_are_as_long_as_the_papers_and_windows_lie_in_them():
    splits = wheel.splits(0.1, seed=3)
    assert whole(splits.train, 64).y.shape == (1, 64 * 562, 1)
    assert whole(splits.validation, 16).y.shape == (1, 16 * 562, 1)
    batch = splits.train.draw(torch.Generator().manual_seed(4), 15, 100)
    assert batch.x.shape == (15, 100, splits.x_dim)
    assert batch.y.shape == (15, 100, splits.y_dim)
    assert batch.switch.shape == (15, 100)
    stream = whole(splits.train, 64)
    for x, y in zip(batch.x, batch.y, strict=True):
        (start,) = (stream.x[0] == x[0]).all(-1).nonzero()[0].tolist()
        assert torch.equal(stream.x[0, start : start + 100], x)
        assert torch.equal(stream.y[0, start : start + 100], y)


def test_a_window_longer_than_the_stream_is_refused():
    splits = wheel.splits(0.1, seed=3)
    with pytest.raises(ValueError, match="shorter than 9000"):
        splits.validation.draw(torch.Generator(), 1, 9000)


def test_a_seed_decides_everything_and_test_streams_are_fresh():
    one, two = (wheel.splits(0.1, seed=5) for _ in range(2))
    assert torch.equal(whole(one.train, 64).x, whole(two.train, 64).x)
    other = wheel.splits(0.1, seed=6)
    assert not torch.equal(whole(one.train, 64).x, whole(other.train, 64).x)
    generator = torch.Generator().manual_seed(7)
    first, second = (one.test.draw(generator, 2, 50) for _ in range(2))
    assert not torch.equal(first.x, second.x)
    assert first.switch[:, 0].all()
