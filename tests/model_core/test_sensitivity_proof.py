"""Asked for so many false alarms, so many come: measured on fresh simulations.

`python -m tests.model_core.test_sensitivity_proof` prints the table of docs/sensitivity.md.
"""

import math
from pathlib import Path

import pytest
import torch

from model_core import artifact
from model_core.sensitivity import choose, read
from model_core.sensitivity.alarms import Streams, watch
from model_core.sensitivity.regimes import draw, shifted
from model_core.upm.builtin import Options, build
from service.models import sensitivity_curves
from service.models.catalogue import SHIPPED

SEED = 1_000_003
RATES = (0.1, 1.0)
MODELS = ("gaussian@1", "poisson@2", "regimes@1")
BATCH, LENGTH = 64, 500


def model_of(reference):
    name = reference.partition("@")[0]
    trained = SHIPPED / name / "1"
    return artifact.load(trained) if trained.exists() else build(reference, Options())


def chosen(reference):
    found = sensitivity_curves.of(Path(), reference)
    return [choose([read(each) for each in found["curves"]], rate, None) for rate in RATES]


def false_alarms(reference, observations, choices, seed=SEED, **streams):
    """Counts at each choice, and how many observations there were."""
    model, generator = model_of(reference), torch.Generator().manual_seed(seed)
    counts, series = [0] * len(choices), 0
    while series * LENGTH < observations:
        quiet = draw(model, BATCH, LENGTH, generator)
        found = watch(model, quiet, Streams(**streams), [each.threshold for each in choices])
        counts = [n + sum(map(len, each)) for n, each in zip(counts, found, strict=True)]
        series += BATCH
    return counts, series * LENGTH


def delays(reference, choice, shift, series=64, seed=SEED):
    model, generator = model_of(reference), torch.Generator().manual_seed(seed)
    quiet = draw(model, series, 250, generator)
    moved = shifted(quiet, model.label, 100, shift, generator)
    (found,) = watch(model, moved, Streams(), [choice.threshold])
    return [next((t - 99 for t in each if t >= 100), math.inf) for each in found]


def check(reference, observations, rates=RATES):
    choices = [c for c, rate in zip(chosen(reference), RATES, strict=True) if rate in rates]
    counts, total = false_alarms(reference, observations, choices)
    for rate, count in zip(rates, counts, strict=True):
        measured = 1000 * count / total
        assert rate / 2 < measured < 2 * rate, (reference, rate, measured, count)


@pytest.mark.parametrize("reference", ["gaussian@1", "poisson@2"])
def test_a_rate_asked_for_is_the_rate_that_comes(reference):
    check(reference, 32_000, rates=(1.0,))


@pytest.mark.slow
@pytest.mark.parametrize("reference", MODELS)
def test_rare_ones_too(reference):
    check(reference, 400_000)


@pytest.mark.slow
@pytest.mark.parametrize("reference", MODELS)
def test_the_delays_are_those_that_are_said(reference):
    for choice in chosen(reference):
        for said in choice.delays:
            found = sorted(delays(reference, choice, said.shift))
            if said.median is not None and said.detected > 0.6:
                assert found[len(found) // 2] == pytest.approx(said.median, rel=0.4, abs=1.5)


def table(observations):
    """Lines of Markdown."""
    for reference in MODELS:
        choices = chosen(reference)
        counts, total = false_alarms(reference, observations, choices)
        for rate, choice, count in zip(RATES, choices, counts, strict=True):
            measured = 1000 * count / total
            medians = ", ".join(f"{each.median or math.inf:.0f}" for each in choice.delays)
            yield (
                f"| `{reference}` | {rate:g} | {choice.threshold:.4f} | {count} in {total:,} |"
                f" {measured:.3f} | {measured / rate:.2f} | {medians} |"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in table(500_000):
        print(line, flush=True)
