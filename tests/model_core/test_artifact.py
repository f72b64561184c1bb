"""Model artifacts: what is written is loaded, and every refusal names the thing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_core import artifact
from model_core import filter as moca
from model_core.encoder import Identity
from model_core.errors import BadArtifact
from tests.model_core.cases import alpaca_case, noisy_alpaca_case, run, series, tensor

CASE = alpaca_case(2)
SCALING = {
    name: {"offset": scaling[0].tolist(), "scale": scaling[1].tolist()}
    for name, scaling in (
        ("input_scaling", CASE.reference.x_scaling),
        ("output_scaling", CASE.reference.y_scaling),
    )
}


def description(**changes) -> dict:
    layers = {"type": "mlp", "layers": [2, 6, 5], "activation": "relu", "output_activation": "tanh"}
    whole = {"kind": "alpaca", "x_dim": 2, "y_dim": 2, "feature_dim": 5, "hazard": 0.1}
    whole |= {"encoder": layers, **SCALING, "training": {"steps": 7}, **changes}
    return {name: value for name, value in whole.items() if value is not ...}


def tensors(**changes) -> dict[str, torch.Tensor]:
    truth = CASE.reference
    found = {
        "prior_mean": tensor(truth.prior_mean),
        "prior_covariance_factor": tensor(truth.factor),
        "log_noise_variance": tensor(truth.noise).log(),
    }
    for i, (weight, bias) in enumerate(truth.layers):
        found |= {f"encoder.{i}.weight": tensor(weight), f"encoder.{i}.bias": tensor(bias)}
    found |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pumps" / "3"


def test_a_saved_model_is_the_model(folder):
    artifact.save(folder, description(), tensors())
    model = artifact.load(folder)
    one = series(CASE, 0, 30, outlier_rate=0.02)
    for a, b in zip(run(CASE, [one], 8), run(CASE._replace(model=model), [one], 8), strict=True):
        torch.testing.assert_close(a.info.log_score, b.info.log_score, atol=1e-11, rtol=0)
    assert (model.kind, model.x_dim, model.y_dim, model.hazard) == ("alpaca", 2, 2, 0.1)


def test_numbers_of_single_precision_are_computed_with_in_double(folder):
    artifact.save(folder, description(), {k: v.float() for k, v in tensors().items()})
    model = artifact.load(folder)
    assert model.encode(tensor([[0.1, 0.2]]), tensor([])).dtype == torch.float64
    assert model.prior_cov.dtype == torch.float64
    assert torch.equal(model.prior_cov, model.prior_cov.mT)


def test_scaling_may_be_left_out(folder):
    artifact.save(folder, description(input_scaling=..., output_scaling=None), tensors())
    model = artifact.load(folder)
    assert (model.x_offset.tolist(), model.x_scale.tolist()) == ([0, 0], [1, 1])
    assert (model.y_offset.tolist(), model.y_scale.tolist()) == ([0, 0], [1, 1])


def test_an_identity_encoder(folder):
    spec = description(encoder={"type": "identity"}, x_dim=5, input_scaling=...)
    artifact.save(folder, spec, tensors())
    model = artifact.load(folder)
    assert model.encoder == Identity()
    x = tensor([[1.0, 2, 3, 4, 5]])
    assert torch.equal(model.encode(x, tensor([])), x)


def test_an_input_is_required(folder):
    artifact.save(folder, description(), tensors())
    model = artifact.load(folder)
    with pytest.raises(ValueError, match="requires an input x of 2 numbers"):
        model.encode(None, tensor([]))


NAN, INF = math.nan, math.inf
HUGE = tensor([[1e200] * 5] * 5)
BAD_DESCRIPTIONS = {
    "kind": [("hmm", "unknown kind 'hmm'"), (..., "kind is None"), (["alpaca"], "kind is")],
    "x_dim": [
        (0, "x_dim is 0"),
        ("2", "x_dim is '2'"),
        (True, "x_dim"),
        (2.0, "x_dim"),
        (..., "x_dim"),
    ],
    "y_dim": [(-1, "y_dim is -1"), (3, r"has shape \[2\], expected \[3\]")],
    "feature_dim": [(6, "prior_covariance_factor"), (..., "feature_dim is None")],
    "hazard": [(h, "hazard") for h in (0, 1, -0.1, 1.5, NAN, INF, "0.1", True, None, ...)],
    "encoder": [
        (..., "encoder is None"),
        ({}, "unknown encoder type None"),
        ({"type": "rnn"}, "unknown encoder type 'rnn'"),
        ({"type": "identity"}, "x_dim 2 is not feature_dim 5"),
        ({"type": "mlp"}, "encoder.layers is None"),
        ({"type": "mlp", "layers": [2]}, r"encoder.layers is \[2\]"),
        ({"type": "mlp", "layers": [3, 6, 5]}, r"expected \[2, ..., 5\]"),
        ({"type": "mlp", "layers": [2, 6, 4]}, r"expected \[2, ..., 5\]"),
        ({"type": "mlp", "layers": [2, 7, 5]}, r"'encoder.0.weight' has shape \[6, 2\]"),
        ({"type": "mlp", "layers": [2, "6", 5]}, "encoder.0.weight"),
        ({"type": "mlp", "layers": [2, 6, 5, 5]}, "encoder.1.weight|encoder.2.weight"),
        ({"type": "mlp", "layers": [2, 6, 5], "activation": "gelu"}, "activation 'gelu'"),
        ({"type": "mlp", "layers": [2, 6, 5], "output_activation": "softmax"}, "'softmax'"),
        ({"type": "mlp", "layers": [2, 6, 5], "activation": ["relu"]}, r"activation \['relu'\]"),
        ({"type": "mlp", "layers": [2, 6, 5], "activation": None}, "activation None"),
    ],
    "input_scaling": [
        ({"offset": [0, 0]}, "input_scaling.*scale"),
        ({"offset": [0, 0], "scale": [1]}, "input_scaling needs 2 finite offsets"),
        ({"offset": [0, 0], "scale": [1, 0]}, "input_scaling needs 2 finite"),
        ({"offset": [0, 0], "scale": [1, -1]}, "input_scaling needs 2 finite"),
        ({"offset": [0, 0], "scale": [1, INF]}, "input_scaling needs 2 finite"),
        ({"offset": [0, NAN], "scale": [1, 1]}, "input_scaling needs 2 finite"),
        ({"offset": [0, "1"], "scale": [1, 1]}, "input_scaling"),
        ({"offset": {"a": 1}, "scale": [1, 1]}, "input_scaling"),
        ({"offset": [[0], [0, 1]], "scale": [1, 1]}, "input_scaling"),
        ({"offset": [0, 10**400], "scale": [1, 1]}, "input_scaling"),
        ([1, 2], "input_scaling"),
        (2.0, "input_scaling"),
        (0, "input_scaling"),
        ({}, "input_scaling"),
    ],
    "noise": [(value, "noise is") for value in ("some", None, 3, ["known"])],
    "output_scaling": [({"offset": [0], "scale": [1]}, "output_scaling needs 2 finite offsets")],
}
DESCRIPTIONS = [(name, *each) for name, all_ in BAD_DESCRIPTIONS.items() for each in all_]


@pytest.mark.parametrize(("name", "value", "words"), DESCRIPTIONS)
def test_a_bad_description_is_named(folder, name, value, words):
    artifact.save(folder, description(**{name: value}), tensors())
    with pytest.raises(BadArtifact, match=words) as caught:
        artifact.load(folder)
    assert "model.json" in str(caught.value) or "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("format_", [0, 2, "1", None, True, 1.0])
def test_an_unknown_format(folder, format_):
    artifact.save(folder, description(format=format_), tensors())
    with pytest.raises(BadArtifact, match="model.json: format"):
        artifact.load(folder)


@pytest.mark.parametrize("name", sorted(tensors()))
def test_every_tensor_is_needed_and_checked(folder, name):
    good = tensors()[name]
    spoilt = good.clone()
    spoilt.view(-1)[-1] = NAN
    infinite = torch.full_like(good, -INF)
    wrong = {
        "is missing": None,
        r"has shape \[.*\], expected": good.unsqueeze(0),
        "is torch.int64, expected float32 or float64": torch.ones(good.shape, dtype=torch.int64),
        "is torch.float16, expected float32 or float64": good.half(),
        "has a non-finite number": spoilt,
        "a non-finite number": infinite,
    }
    for words, value in wrong.items():
        artifact.save(folder, description(), tensors(**{name: value}))
        with pytest.raises(
            BadArtifact, match=f"model.safetensors: .*'{name}' {words}|{words}"
        ) as e:
            artifact.load(folder)
        assert name in str(e.value)
        assert "model.safetensors" in str(e.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("prior_covariance_factor", HUGE, "'prior_covariance_factor' is too large"),
        ("log_noise_variance", tensor([0.0, 1000.0]), "'log_noise_variance' is too large"),
        ("log_noise_variance", tensor([0.0, -1000.0]), "'log_noise_variance' is too small"),
    ],
)
def test_numbers_whose_use_is_not_finite(folder, name, value, words):
    artifact.save(folder, description(), tensors(**{name: value}))
    with pytest.raises(BadArtifact, match=words):
        artifact.load(folder)


NOISY = noisy_alpaca_case(2)


def noisy_tensors(**changes) -> dict[str, torch.Tensor]:
    found = tensors(log_noise_variance=None)
    prior = NOISY.model.noise_prior
    found |= {"log_noise_alpha": prior.alpha.log(), "log_noise_beta": prior.beta.log()}
    return {name: value for name, value in (found | changes).items() if value is not None}


def test_a_model_of_unknown_noise(folder):
    artifact.save(folder, description(noise="unknown"), noisy_tensors())
    model = artifact.load(folder)
    one = series(NOISY, 0, 30, outlier_rate=0.02)
    for a, b in zip(run(NOISY, [one], 8), run(NOISY._replace(model=model), [one], 8), strict=True):
        torch.testing.assert_close(a.info.log_score, b.info.log_score, atol=1e-11, rtol=0)
    artifact.save(folder, description(noise="known"), tensors())
    assert artifact.load(folder).noise_prior is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log_noise_alpha", None, "'log_noise_alpha' is missing"),
        ("log_noise_beta", None, "'log_noise_beta' is missing"),
        ("log_noise_alpha", tensor([0.5, 0.0]), "'log_noise_alpha' has one not above 0"),
        ("log_noise_alpha", tensor([0.5]), "'log_noise_alpha' has shape"),
        ("log_noise_alpha", tensor([0.5, 1000.0]), "'log_noise_alpha' is too large"),
        ("log_noise_beta", tensor([0.5, -1000.0]), "'log_noise_beta' is too small"),
    ],
)
def test_unknown_noise_is_checked(folder, name, value, words):
    artifact.save(folder, description(noise="unknown"), noisy_tensors(**{name: value}))
    with pytest.raises(BadArtifact, match=words):
        artifact.load(folder)


FILES = {
    "model.json": [None, b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000],
    "model.safetensors": [None, b"", b"\0" * 7, b"\xff" * 64, b"{}" * 10],
}


@pytest.mark.parametrize(("name", "content"), [(n, c) for n, all_ in FILES.items() for c in all_])
def test_a_file_that_is_missing_or_cannot_be_read(folder, name, content):
    artifact.save(folder, description(), tensors())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(BadArtifact, match=name):
        artifact.load(folder)


def test_a_folder_in_the_place_of_a_file(folder):
    artifact.save(folder, description(), tensors())
    for name in ("model.safetensors", "model.json"):
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(BadArtifact, match=name):
            artifact.load(folder)


def test_tensors_cut_short(folder):
    artifact.save(folder, description(), tensors())
    whole = (folder / "model.safetensors").read_bytes()
    for length in range(0, len(whole), 37):
        (folder / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(BadArtifact, match="model.safetensors"):
            artifact.load(folder)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
quick = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@quick
@given(field=st.sampled_from(sorted(description())), value=anything, inner=st.data())
def test_any_description_is_loaded_or_refused(folder, field, value, inner):
    old = description()[field]
    if isinstance(old, dict) and inner.draw(st.booleans()):
        value = {**old, inner.draw(st.sampled_from(sorted(old))): value}
    artifact.save(folder, description(**{field: value}), tensors())
    try:
        model = artifact.load(folder)
    except BadArtifact:
        return
    one = series(CASE, 1, 3)
    assert all(s.info.ok.all() for s in run(CASE._replace(model=model), [one], 4))
    assert moca.make_prior(model, tensor([[0, 0]]), tensor([[1, 1]])).stats.mean.shape == (
        1,
        1,
        5,
        2,
    )
