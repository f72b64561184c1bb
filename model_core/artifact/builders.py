"""The kinds of model that come with the package, from the parts of an artifact."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from model_core.artifact.encoders import activation, encoder, mlp
from model_core.artifact.parts import Parts
from model_core.artifact_digest import DESCRIPTION, TENSORS
from model_core.encoder import Mlp
from model_core.errors import BadArtifact
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.alpaca_mixture import AlpacaMixture
from model_core.upm.fleet import Fleet
from model_core.upm.lstm import Lstm
from model_core.upm.pcoc import Pcoc


def alpaca(parts: Parts) -> Alpaca:
    """`prior_mean` (n, y), `prior_covariance_factor` (n, n), `log_noise_variance` (y,).

    With `"noise": "unknown"` there are `log_noise_alpha` and `log_noise_beta` (y,) instead of the
    last: shape and scale of the inverse gamma that the variances come from.
    """
    y_dim = parts.size("y_dim")
    n = parts.size("feature_dim")
    cov = _prior_cov(parts, n)
    variance, noise_prior = _noise(parts, y_dim)
    return Alpaca(
        **_encoder(parts, y_dim, n),
        prior_mean=parts.tensor("prior_mean", n, y_dim),
        prior_cov=cov,
        noise_variance=variance,
        noise_prior=noise_prior,
        **_scalings(parts, y_dim),
        **parts.defaults(),
    )


def alpaca_mixture(parts: Parts) -> AlpacaMixture:
    """As `alpaca`, each tensor with one more axis in front, of M typical regimes.

    Besides, `prior_logits` (M,), whose softmax are their probabilities. `regimes` is a list of
    `{"name": "1", "probability": 0.4}`, whose names differ; where it is left out names are numbers
    from 1. Its probabilities are for readers: the tensor decides.
    """
    y_dim = parts.size("y_dim")
    n = parts.size("feature_dim")
    (size,) = parts.shape("prior_logits", 1)
    factor = parts.tensor("prior_covariance_factor", size, n, n)
    cov = parts.derived("prior_covariance_factor", factor @ factor.mT)
    variance, noise_prior = _noise(parts, size, y_dim)
    return AlpacaMixture(
        **_encoder(parts, y_dim, n),
        log_weight=parts.tensor("prior_logits", size).log_softmax(-1),
        prior_mean=parts.tensor("prior_mean", size, n, y_dim),
        prior_cov=0.5 * (cov + cov.mT),
        noise_variance=variance,
        noise_prior=noise_prior,
        names=_names(parts, size),
        **_scalings(parts, y_dim),
        **parts.defaults(),
    )


def _names(parts: Parts, size: int) -> tuple[str, ...]:
    """Of typical regimes; none where the field is left out."""
    if parts.description.get("regimes") is None:
        return ()
    given: list[Any] = parts.field("regimes", list)
    names = [regime.get("name") if isinstance(regime, dict) else None for regime in given]
    texts = all(isinstance(name, str) and name.strip() for name in names)
    if not texts or not len(set(names)) == len(names) == size:
        raise BadArtifact(
            f"{DESCRIPTION}: regimes is {given!r}, expected {size} objects with different names"
        )
    return tuple(map(str, names))


def fleet(parts: Parts) -> Fleet:
    """`prior_mean` (n, y), `prior_covariance_factor` (n, n), `log_noise_alpha`, `log_noise_beta`.

    Those of the noise (y,): shape and scale of the inverse gamma that the variances come from, in
    the stream's own units. `chance` is the prior probability of the learned part in a regime, 0.5
    by default. There is no output scaling: every stream has its own.
    """
    y_dim = parts.size("y_dim")
    n = parts.size("feature_dim")
    if parts.description.get("output_scaling") is not None:
        raise BadArtifact(f"{DESCRIPTION}: output_scaling: remove it, every stream has its own")
    cov = _prior_cov(parts, n)
    x_offset, x_scale = parts.scaling("input_scaling", parts.size("x_dim", 0))
    return Fleet(
        y_dim=y_dim,
        **_encoder(parts, y_dim, n),
        x_offset=x_offset,
        x_scale=x_scale,
        prior_mean=parts.tensor("prior_mean", n, y_dim),
        prior_cov=cov,
        noise_alpha=parts.exponential("log_noise_alpha", y_dim),
        noise_beta=parts.exponential("log_noise_beta", y_dim),
        chance=parts.number("chance", 0.0, 1.0, default=0.5),
        **parts.defaults(),
    )


def _prior_cov(parts: Parts, n: int) -> Tensor:
    """`S S'`, symmetric to the bit."""
    factor = parts.tensor("prior_covariance_factor", n, n)
    cov = parts.derived("prior_covariance_factor", factor @ factor.T)
    return 0.5 * (cov + cov.T)


def _noise(parts: Parts, *shape: int) -> tuple[Tensor | None, NoisePrior | None]:
    noise = parts.description.get("noise", "known")
    if noise == "known":
        return parts.exponential("log_noise_variance", *shape), None
    if noise != "unknown":
        raise BadArtifact(f"{DESCRIPTION}: noise is {noise!r}, expected 'known' or 'unknown'")
    alpha = parts.exponential("log_noise_alpha", *shape, above=1.0)  # or no variance exists
    return None, NoisePrior(alpha, parts.exponential("log_noise_beta", *shape))


def pcoc(parts: Parts) -> Pcoc:
    """`prior_mean`, `log_prior_precision`, `log_noise_variance` (J, n), `log_dirichlet` (J,).

    `y_dim` is J, the number of classes; there is no output scaling.
    """
    x_dim = parts.size("x_dim")
    n = parts.size("feature_dim")
    classes = parts.size("y_dim", least=2)
    if parts.description.get("output_scaling") is not None:
        raise BadArtifact(f"{DESCRIPTION}: output_scaling is given, but labels are class indices")
    mean = parts.tensor("prior_mean", classes, n)
    precision = parts.exponential("log_prior_precision", classes, n)
    dirichlet = parts.exponential("log_dirichlet", classes)
    parts.derived("prior_mean", precision * mean)
    parts.derived("log_dirichlet", dirichlet.sum())
    offset, scale = parts.scaling("input_scaling", x_dim)
    return Pcoc(
        encoder=encoder(parts, x_dim, n),
        prior_mean=mean,
        prior_precision=precision,
        noise_variance=parts.exponential("log_noise_variance", classes, n),
        dirichlet=dirichlet,
        x_offset=offset,
        x_scale=scale,
        **parts.defaults(),
    )


def lstm(parts: Parts) -> Lstm:
    """`lstm.weight_ih` (4h, n + y), `lstm.weight_hh` (4h, h), `lstm.bias_{ih,hh}` (4h,), decoder.

    Layout and order of torch.nn.LSTMCell. `decoder.{i}.weight` (out, in), `decoder.{i}.bias`: from
    h + n numbers, hidden state first, to 2 y, means and then log variances. Sizes are those of the
    tensors; `"decoder": {"activation": "relu"}` in the description may name another activation.
    """
    y_dim = parts.size("y_dim")
    n = parts.size("feature_dim")
    encoding = _encoder(parts, y_dim, n)
    hidden = parts.shape("lstm.weight_hh", 2)[1]
    return Lstm(
        **encoding,
        weight_ih=parts.tensor("lstm.weight_ih", 4 * hidden, n + y_dim),
        weight_hh=parts.tensor("lstm.weight_hh", 4 * hidden, hidden),
        bias_ih=parts.tensor("lstm.bias_ih", 4 * hidden),
        bias_hh=parts.tensor("lstm.bias_hh", 4 * hidden),
        decoder=_decoder(parts, hidden + n, 2 * y_dim),
        **_scalings(parts, y_dim),
        **parts.defaults(),
    )


def _decoder(parts: Parts, into: int, out: int) -> Mlp:
    layers = [re.fullmatch(r"decoder\.(\d{1,3})\.(weight|bias)", name) for name in parts.tensors]
    last = max((int(layer[1]) for layer in layers if layer), default=-1)
    if last < 0:
        raise BadArtifact(f"{TENSORS}: tensor 'decoder.0.weight' is missing")
    inner = [parts.shape(f"decoder.{i}.weight", 2)[0] for i in range(last)]
    spec = {} if parts.description.get("decoder") is None else parts.field("decoder", dict)
    names = activation(spec, "activation", "relu"), "identity"
    return mlp(parts, "decoder", [into, *inner, out], names)


def _encoder(parts: Parts, y_dim: int, n: int) -> dict[str, Any]:
    """The encoder, which takes inputs, or labels before (`lags`), or both."""
    lags = parts.size("lags", 0) if "lags" in parts.description else 0
    into = parts.size("x_dim", 0 if lags else 1) + lags * y_dim
    return {"encoder": encoder(parts, into, n), "lags": lags}


def _scalings(parts: Parts, y_dim: int) -> dict[str, Any]:
    x_offset, x_scale = parts.scaling("input_scaling", parts.size("x_dim", 0))
    y_offset, y_scale = parts.scaling("output_scaling", y_dim)
    return {"x_offset": x_offset, "x_scale": x_scale, "y_offset": y_offset, "y_scale": y_scale}
