"""What pruning costs: the score on real and simulated series, and a bound of the evidence.

`pytest -s` prints the differences that are measured.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from model_core import artifact
from model_core import belief as beliefs
from model_core import filter as moca
from model_core.filter import Prior
from model_core.upm.conjugate import Gaussian
from tests.model_core.cases import CASES, by_start, run, series, tensor, walk
from tests.model_core.enumeration import segmentations
from tests.model_core.reference import Series
from tests.model_core.test_vectors import write_artifact

K, LOSS = 50, 1e-3  # hypotheses by default; nats that pruning to so many may cost on average
NILE = Path(__file__).parents[2] / "service" / "samples" / "nile.csv"
WARMUP = 10  # labels from which location and scale are taken
# The score of a generative model leaves out what its inputs say.
CONDITIONAL = [case for case in CASES if not hasattr(case.reference, "log_input")]
cases = pytest.mark.parametrize("case", CONDITIONAL, ids=lambda case: case.name)


class Scores(NamedTuple):
    """Of every step (T,)."""

    log_score: torch.Tensor
    pruned_mass: torch.Tensor


def scores(model, prior: Prior, one: Series, max_hypotheses: int) -> Scores:
    infos = [step.info for step in walk(model, prior, [one], max_hypotheses)]
    return Scores(
        torch.cat([info.log_score for info in infos]),
        torch.cat([info.pruned_mass for info in infos]),
    )


def plain(x: np.ndarray, y: np.ndarray, hazard: float) -> Series:
    one = np.ones(len(y))
    return Series(x, y, one > 0, hazard * one, one, np.nan * one, 0 * one)


def tcpd(name: str) -> np.ndarray:
    """Outputs (T, d) of a series of the Turing Change Point Dataset."""
    folder = os.environ.get("MOCA_TEST_DATA")
    if not folder or not (Path(folder) / "tcpd.json").exists():
        pytest.skip("MOCA_TEST_DATA does not name a folder with tcpd.json")
    return np.array(json.loads((Path(folder) / "tcpd.json").read_text())[name]["values"]).T


def nile() -> np.ndarray:
    with NILE.open() as file:
        return np.array([[float(row["y"])] for row in csv.DictReader(file)])


def gaussian_scores(y: np.ndarray) -> tuple[Scores, Scores]:
    """Pruned and exact, with the outlier rate that gaussian streams have by default."""
    model = Gaussian(y_dim=y.shape[1])
    moments = y[:WARMUP].mean(0), y[:WARMUP].std(0, ddof=1)
    prior = moca.make_prior(model, *(tensor(each)[None] for each in moments))
    one = plain(np.zeros((len(y), 0)), y, model.hazard)
    one = one._replace(outlier_rate=np.full(len(y), model.outlier_rate))
    return scores(model, prior, one, K), scores(model, prior, one, len(y))


def assert_cheap(name: str, pruned: Scores, exact: torch.Tensor) -> None:
    """Within the loss allowed; the masses are reported and the bound holds."""
    loss = measured(name, pruned, exact)
    assert abs(loss) < LOSS
    mass = pruned.pruned_mass
    assert (mass[:K] == 0).all()
    assert 0 < mass.max() < 0.01  # some are too small for a number


def measured(name: str, pruned: Scores, exact: torch.Tensor) -> float:
    """Average score that pruning cost; printed, with what it reported."""
    off, mass = exact - pruned.log_score, pruned.pruned_mass
    bound, evidence = beliefs.evidence_bound(*pruned), exact.cumsum(0)
    assert (bound <= evidence + 1e-9).all()
    total = -torch.expm1(torch.log1p(-mass).sum())
    print(
        f"\n{name}, {len(off)} steps: loss {off.mean():.1e} nats a step, at most"
        f" {off.abs().max():.1e}; pruned at most {mass.max():.1e}, in total {total:.1e};"
        f" evidence above its bound by {evidence[-1] - bound[-1]:.1e}"
    )
    return off.mean().item()


def test_nile():
    pruned, exact = gaussian_scores(nile())
    assert_cheap("nile", pruned, exact.log_score)


@pytest.mark.parametrize("name", ["quality_control_1", "jfk_passengers", "brent_spot"])
def test_turing_change_points(name):
    pruned, exact = gaussian_scores(tcpd(name))
    assert_cheap(name, pruned, exact.log_score)


def test_a_forgotten_regime_may_have_been_worth_more_than_its_mass():
    """A slow trend and one level that returns: the mass pruned is no bound of the loss."""
    pruned, exact = gaussian_scores(tcpd("co2_canada"))
    assert measured("co2_canada", pruned, exact.log_score) > 1e6 * pruned.pruned_mass.sum()


@pytest.mark.parametrize("name", ["alpaca_trained_y1_T120_h0.1", "alpaca_trained_y1_T400_h0.01"])
def test_switching_sinusoids(vectors, tmp_path, name):
    """Against the scores of the reference implementation, which prunes nothing."""
    with np.load(vectors / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    write_artifact(tmp_path, arrays)
    model = artifact.load(tmp_path)
    zero = tensor([[0.0]])
    one = plain(arrays["x"], arrays["y"], float(arrays["hazard"]))
    pruned = scores(model, moca.make_prior(model, zero, zero + 1), one, K)
    assert_cheap(name, pruned, tensor(-arrays["nll"]))


TOLD = {
    "elapsed": [1, 2, 0.5, 1, 4, 1, 1, 1],
    "changepoint": [np.nan, np.nan, 0.4, np.nan, 0.1, np.nan, np.nan, np.nan],
    "labelled": [True, True, False, True, True, True, True, True],
    "outlier_rate": 0.05,
    "hazard": (0.3, 0.1, 0.2),
}


@pytest.mark.one_in(2)
@cases
def test_the_bound_is_the_evidence_of_what_was_never_pruned(case):
    """By enumeration, with three hypotheses of eight."""
    one = series(case, 4, 8, **TOLD)
    steps = run(case, [one], 3)
    alive = [set(by_start(step.state, step.state.belief.log_prob)) for step in steps]
    score = torch.cat([step.info.log_score for step in steps])
    bound = beliefs.evidence_bound(score, torch.cat([step.info.pruned_mass for step in steps]))
    for t in range(8):
        paths = segmentations(case.reference, one, t)
        kept = [
            joint
            for starts, joint in paths
            if all(max(s for s in starts if s <= i) in alive[i] for i in range(t))
        ]
        assert bound[t].item() == pytest.approx(logsumexp(kept), abs=1e-9)
        assert t < 4 or len(kept) < len(paths)
        assert bound[t].item() <= logsumexp([joint for _, joint in paths]) + 1e-12


@pytest.mark.one_in(4)
@cases
@pytest.mark.parametrize("room", [2, 6])
def test_the_bound_is_below_the_exact_evidence(case, room):
    told = {**TOLD, "labelled": [True] * 9 + [False]}
    batch = [series(case, seed, 40, **told) for seed in range(3)]
    found = {}
    for size in (room, 40):
        infos = [step.info for step in run(case, batch, size)]
        score = torch.stack([info.log_score for info in infos], -1)
        pruned = torch.stack([info.pruned_mass for info in infos], -1)
        found[size] = beliefs.evidence_bound(score, pruned)
        if size == 40:
            assert (pruned == 0).all()
            exact = torch.nan_to_num(score).cumsum(-1)
    torch.testing.assert_close(found[40], exact, atol=0, rtol=0)
    assert (found[room] <= exact + 1e-9).all()
    assert (found[room] < exact - 1e-9).any()
