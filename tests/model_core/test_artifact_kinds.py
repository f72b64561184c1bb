"""Artifacts of classifiers, of recurrent models and of kinds of one's own; hazards in them."""

from __future__ import annotations

import math

import pytest
import torch

from model_core import artifact
from model_core import hazard as hazards
from model_core.artifact import files
from model_core.artifact.parts import Parts
from model_core.errors import BadArtifact
from model_core.upm.conjugate import Gaussian
from tests.model_core.cases import BY_NAME, Case, run, series, tensor

NAN, INF = math.nan, math.inf
PCOC, LSTM = BY_NAME["pcoc-3"], BY_NAME["lstm-2"]
LEARNED = pytest.mark.parametrize("case", [PCOC, LSTM], ids=lambda case: case.name)


def scaled(values) -> dict[str, list[float]]:
    return {"offset": values[0].tolist(), "scale": values[1].tolist()}


def description(case: Case, **changes) -> dict:
    model, truth = case.model, case.reference
    sizes = [model.encoder.weights[0].shape[1], *(len(b) for b in model.encoder.biases)]
    whole = {"kind": model.kind, "x_dim": sizes[0], "feature_dim": sizes[-1], "hazard": 0.1}
    whole |= {"y_dim": model.classes or model.y_dim, "input_scaling": scaled(truth.x_scaling)}
    whole["encoder"] = {"type": "mlp", "layers": sizes}
    if model.kind == "lstm":
        whole["output_scaling"] = scaled(truth.y_scaling)
    return {name: value for name, value in {**whole, **changes}.items() if value is not ...}


def tensors(case: Case, **changes) -> dict[str, torch.Tensor]:
    model, found = case.model, {}
    networks = {"encoder": model.encoder} | (
        {"decoder": model.decoder} if model.kind == "lstm" else {}
    )
    for name, network in networks.items():
        for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
            found |= {f"{name}.{i}.weight": weight, f"{name}.{i}.bias": bias}
    if model.kind == "lstm":
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        found |= {f"lstm.{name}": getattr(model, name) for name in names}
    else:
        found["prior_mean"] = model.prior_mean
        for name in ("prior_precision", "noise_variance", "dirichlet"):
            found[f"log_{name}"] = getattr(model, name).log()
    found |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in found.items() if value is not None}


@LEARNED
def test_a_saved_model_is_the_model(tmp_path, case):
    artifact.save(tmp_path, description(case, outlier_rate=0.25), tensors(case))
    model = artifact.load(tmp_path)
    assert (model.kind, model.x_dim, model.y_dim) == (
        case.model.kind,
        len(model.x_offset),
        case.model.y_dim,
    )
    assert (model.label, model.classes) == (case.model.label, case.model.classes)
    assert (model.hazard, model.outlier_rate) == (0.1, 0.25)
    one = series(case, 0, 20, outlier_rate=0.02)
    for a, b in zip(run(case, [one], 8), run(case._replace(model=model), [one], 8), strict=True):
        torch.testing.assert_close(a.info.log_score, b.info.log_score, atol=1e-11, rtol=0)


@LEARNED
def test_numbers_of_single_precision_are_computed_with_in_double(tmp_path, case):
    artifact.save(tmp_path, description(case), {k: v.float() for k, v in tensors(case).items()})
    model = artifact.load(tmp_path)
    assert model.outlier_rate == 0
    for step in run(case._replace(model=model), [series(case, 1, 5)], 8):
        assert step.info.log_score.dtype == torch.float64
        assert step.info.ok.all()


NAMES = [(case, name) for case in (PCOC, LSTM) for name in sorted(tensors(case))]


@pytest.mark.parametrize(("case", "name"), NAMES, ids=lambda v: getattr(v, "name", v))
def test_every_tensor_is_needed_and_checked(tmp_path, case, name):
    good = tensors(case)[name]
    spoilt = good.clone()
    spoilt.view(-1)[-1] = NAN
    for words, value in {
        "missing|decoder": None,
        "has shape .*, expected": good.unsqueeze(0),
        "expected float32 or float64": good.half(),
        "has a non-finite number": spoilt,
    }.items():
        artifact.save(tmp_path, description(case), tensors(case, **{name: value}))
        with pytest.raises(BadArtifact, match=words) as error:
            artifact.load(tmp_path)
        assert name in str(error.value)
        assert "model.safetensors" in str(error.value)


REFUSED = [
    (PCOC, {"y_dim": 1}, {}, "model.json: y_dim is 1, expected at least 2"),
    (PCOC, {"y_dim": 4}, {}, r"'prior_mean' has shape \[3, 4\], expected \[4, 4\]"),
    (PCOC, {"output_scaling": {"offset": 0, "scale": 1}}, {}, "output_scaling is given"),
    (PCOC, {}, {"log_dirichlet": tensor([1000.0, 0, 0])}, "'log_dirichlet' is too large"),
    (PCOC, {}, {"log_dirichlet": tensor([-1000.0, 0, 0])}, "'log_dirichlet' is too small"),
    (PCOC, {}, {"log_dirichlet": tensor([709.5, 709.5, 0])}, "'log_dirichlet' is too large"),
    (PCOC, {}, {"log_noise_variance": tensor([[-800.0] * 4] * 3)}, "variance' is too small"),
    (PCOC, {}, {"log_prior_precision": tensor([[-740.0] * 4] * 3)}, "precision' is too small"),
    (PCOC, {"encoder": {"type": "cnn"}}, {}, "unknown encoder type 'cnn', expected .*conv"),
    (LSTM, {"y_dim": 1}, {}, "lstm.weight_ih' has shape"),
    (LSTM, {"feature_dim": 4}, {}, "encoder.layers"),
    (LSTM, {"decoder": {"activation": "gelu"}}, {}, "unknown activation 'gelu'"),
    (LSTM, {"decoder": [5]}, {}, r"decoder is \[5\], expected dict"),
    (LSTM, {}, {"lstm.weight_hh": tensor([1.0])}, r"shape \[1\], expected 2 dimensions"),
    (LSTM, {}, {"lstm.weight_hh": torch.zeros(4, 0)}, "expected 2 dimensions"),
    (LSTM, {}, {"lstm.weight_hh": torch.zeros(12, 3)}, "lstm.weight_ih' has shape"),
    (LSTM, {}, {"decoder.2.bias": tensor([1.0])}, "'decoder.2.weight' is missing"),
    (
        LSTM,
        {},
        {f"decoder.{i}.{part}": None for i in (0, 1) for part in ("weight", "bias")},
        "tensor 'decoder.0.weight' is missing",
    ),
]


@pytest.mark.parametrize(("case", "fields", "values", "words"), REFUSED)
def test_a_bad_model_is_named(tmp_path, case, fields, values, words):
    artifact.save(tmp_path, description(case, **fields), tensors(case, **values))
    with pytest.raises(BadArtifact, match=words) as error:
        artifact.load(tmp_path)
    assert "model.json" in str(error.value) or "model.safetensors" in str(error.value)


def test_another_activation_of_the_decoder(tmp_path):
    artifact.save(tmp_path, description(LSTM, decoder={"activation": "tanh"}), tensors(LSTM))
    assert artifact.load(tmp_path).decoder.activation == "tanh"


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, NAN, INF, "0.1", True, [0.1]])
def test_a_bad_outlier_rate(tmp_path, rate):
    artifact.save(tmp_path, description(PCOC, outlier_rate=rate), tensors(PCOC))
    with pytest.raises(BadArtifact, match="outlier_rate is"):
        artifact.load(tmp_path)


def loaded_hazard(folder, hazard) -> float | tuple[float, ...]:
    artifact.save(folder, description(PCOC, hazard=hazard), tensors(PCOC))
    return artifact.load(folder).hazard


@pytest.mark.parametrize("table", [[0.1], [0.0, 0, 0.5], [0.2] * 300, [0, 1]])
def test_a_hazard_by_run_length(tmp_path, table):
    found = loaded_hazard(tmp_path, table)
    assert found == tuple(table)
    assert all(isinstance(each, float) for each in found)


def test_a_hazard_from_durations(tmp_path):
    assert loaded_hazard(tmp_path, {"mean": 50, "shape": 4}) == hazards.negative_binomial(50, 4)


@pytest.mark.parametrize(
    ("hazard", "words"),
    [
        ([], "of 1 to 10000 entries, got 0"),
        ([0.1] * 10_001, "of 1 to 10000 entries"),
        ([0, 0], "never allows a change"),
        ([0.1, -0.1], "got -0.1 at run length 1"),
        ([0.1, 1.1], "got 1.1 at run length 1"),
        ([0.1, NAN], "got nan at run length 1"),
        ([0.1, "0.1"], "expected a table of numbers"),
        ([True, 0.1], "expected a table of numbers"),
        ([[0.1]], "expected a table of numbers"),
        ({}, "expected mean and shape"),
        ({"mean": 9}, "expected mean and shape"),
        ({"mean": 9, "shape": "2"}, "both numbers"),
        ({"mean": True, "shape": 2}, "both numbers"),
        ({"mean": 9, "shape": 2, "scale": 3}, "expected mean and shape"),
        ({"mean": 0.5, "shape": 2}, "expected a mean regime duration between"),
        ({"mean": 9, "shape": 0}, "expected a finite shape above 0"),
    ],
)
def test_a_bad_hazard_is_named(tmp_path, hazard, words):
    with pytest.raises(BadArtifact, match=f"model.json: hazard: .*{words}"):
        loaded_hazard(tmp_path, hazard)


@pytest.fixture
def registry(monkeypatch):
    """Kinds registered in a test are gone after it."""
    monkeypatch.setattr(files, "_BUILDERS", dict(files._BUILDERS))


def level(parts: Parts) -> Gaussian:
    return Gaussian(y_dim=parts.size("y_dim"), kappa=parts.number("kappa", 0, default=0.5))


def test_a_kind_of_ones_own_needs_no_tensors(tmp_path, registry):
    artifact.register("level", level)
    artifact.register("level", level)  # a module imported twice
    artifact.save(tmp_path, {"kind": "level", "x_dim": 0, "y_dim": 2, "kappa": 0.25}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]
    assert artifact.load(tmp_path) == Gaussian(y_dim=2, kappa=0.25)
    artifact.save(tmp_path, {"kind": "level", "y_dim": 2}, {})
    assert artifact.load(tmp_path).kappa == 0.5
    artifact.save(tmp_path, {"kind": "level", "y_dim": 2, "kappa": -1}, {})
    with pytest.raises(BadArtifact, match="kappa is -1, expected a number between 0"):
        artifact.load(tmp_path)


def test_a_kind_is_registered_once(registry):
    with pytest.raises(ValueError, match="kind 'alpaca' is already registered"):
        artifact.register("alpaca", level)
    assert artifact.kinds() == ["alpaca", "alpaca-mixture", "fleet", "lstm", "pcoc"]


def test_an_unknown_kind_lists_those_there_are(tmp_path, registry):
    artifact.register("level", level)
    artifact.save(tmp_path, {"kind": "hmm"}, {})
    with pytest.raises(BadArtifact, match="unknown kind 'hmm', expected one of") as refused:
        artifact.load(tmp_path)
    assert all(repr(kind) in str(refused.value) for kind in (*artifact.kinds(), "level"))


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (lambda parts: parts.description["colour"], "KeyError.*colour"),
        (lambda parts: parts.tensors["w"] + 1, "KeyError"),
        (lambda parts: 1 / 0, "ZeroDivisionError"),
        (lambda parts: "a model", "creates a str, expected a model"),
        (lambda parts: parts.tensor("w", 2), "model.safetensors: tensor 'w' is missing"),
    ],
)
def test_a_builder_that_fails_is_a_bad_artifact(tmp_path, registry, builder, words):
    artifact.register("broken", builder)
    artifact.save(tmp_path, {"kind": "broken"}, {})
    with pytest.raises(BadArtifact, match=words):
        artifact.load(tmp_path)


def test_parts_know_their_folder_and_device(tmp_path, registry):
    seen = []

    def build(parts: Parts) -> Gaussian:
        seen.append(parts)
        return level(parts)

    artifact.register("seen", build)
    artifact.save(tmp_path, {"kind": "seen", "y_dim": 1}, {})
    artifact.load(tmp_path)
    assert (seen[0].folder, seen[0].device) == (tmp_path, torch.device("cpu"))
