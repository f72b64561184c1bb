"""What is left out of mixtures of many outputs and components, and what that may not change."""

import pytest
import torch

from model_core import predictive
from model_core.components import Categorical, MultivariateStudentT
from model_core.components.base import average
from model_core.predictive import Mixture
from model_core.upm.base import tree_map
from model_core.upm.builtin import BUILTIN, NEWEST, Options
from tests.model_core.cases import tensor


@pytest.mark.parametrize("sharp", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("kind", ["gaussian", "multivariate", "averaged"])
def test_of_many_outputs_what_has_no_weight_is_left_out(monkeypatch, kind, sharp):
    """Quantiles and cdf are those of all components, and no row depends on another."""
    g, outputs, count = torch.Generator().manual_seed(2), 12, 80
    model = BUILTIN[NEWEST[kind]].build(Options(outputs, 0))
    location = torch.randn(2, outputs, generator=g, dtype=torch.float64)
    held = model.prior(location, torch.ones_like(location))
    held = tree_map(lambda t: t.repeat(1, count, *[1] * (t.dim() - 2)), held)
    phi = model.encode(None, model.context(location, torch.ones_like(location)))
    y = torch.randn(2, outputs, generator=g, dtype=torch.float64)
    weight = torch.rand(2, count, generator=g, dtype=torch.float64)
    held = model.update(held, phi, y, weight)
    falling = -sharp * torch.arange(count, dtype=torch.float64)
    mixture = Mixture(torch.log_softmax(falling, 0).expand(2, -1), model.predictive(held, phi))
    levels = tensor([1e-3, 0.5, 0.95])
    whole = mixture.quantile(levels, 1e-6), mixture.cdf(y)
    monkeypatch.setattr(predictive, "LARGE", 100)
    found = mixture.quantile(levels, 1e-6), mixture.cdf(y)
    torch.testing.assert_close(found, whole, atol=1e-11, rtol=1e-11)
    parts = mixture.components.parameters()
    first = Mixture(mixture.log_weight[:1], mixture.components.rebuilt(*(p[:1] for p in parts)))
    assert torch.equal(first.quantile(levels, 1e-6), found[0][:1])


@pytest.mark.parametrize("df", [[9.0, 1.5], [9.0, 12.0]])
def test_the_covariance_within_is_the_average_of_all(df):
    factor = tensor([[[[1.0, 0.0], [0.9, 0.3]], [[2.0, 0.0], [-1.5, 0.5]]]])
    correlated = MultivariateStudentT(
        tensor([[[each] for each in df]]), tensor([[[0, 1.0]] * 2]), factor
    )
    chances = Categorical(tensor([[[0.2, 0.8], [0.6, 0.4]]]).log())
    log_weight = tensor([[0.3, 0.7]]).log()
    for components in (correlated, correlated.alone(), chances):
        whole = average(log_weight, components.covariance().flatten(2))
        found = components.within(log_weight)
        torch.testing.assert_close(found, whole.reshape(found.shape), atol=1e-15, rtol=1e-14)
