"""Model artifacts: what is written is loaded, every refusal names the thing, kinds of one's own."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from model_core import artifact
from model_core import hazard as hazards
from model_core.artifact import Parts
from model_core.encoder import Identity
from model_core.errors import BadArtifact
from model_core.upm.conjugate import Gaussian
from tests.model_core.registry import tensor
from tests.training.test_learners import learner_of

KINDS = (
    "alpaca-known", "alpaca-lags", "alpaca-mixture-unknown", "alpaca-conv", "fleet", "pcoc",
    "lstm-lags",
)  # fmt: skip
NAN, INF = math.nan, math.inf


@functools.cache
def stored(name: str) -> tuple[dict, dict[str, Tensor]]:
    """Description and tensors of a learner; that they are its model is in tests/training."""
    return learner_of(name).artifact()


def changed(whole: dict, changes: dict) -> dict:
    """With other values; ... takes one out."""
    return {name: value for name, value in {**whole, **changes}.items() if value is not ...}


@pytest.fixture
def load(tmp_path):
    """Write a model of a name with changes, and load it."""

    def loaded(name: str = "alpaca-known", fields: dict | None = None, tensors: dict | None = None):
        description, values = stored(name)
        artifact.save(tmp_path, changed(description, fields or {}), changed(values, tensors or {}))
        return artifact.load(tmp_path)

    return loaded


@pytest.mark.parametrize("name", KINDS)
def test_tensors_of_single_precision_are_used_in_double(load, name):
    single = {key: value.float() for key, value in stored(name)[1].items()}
    model = load(name, {"outlier_rate": 0.25}, single)
    assert model.outlier_rate == 0.25
    found = [each for each in vars(model).values() if isinstance(each, Tensor)]
    assert {each.dtype for each in found} == {torch.float64}


@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_is_needed_and_checked(load, name):
    for key, good in stored(name)[1].items():
        spoilt = good.clone()
        spoilt[(-1,) * spoilt.dim()] = NAN
        for value in (
            ...,
            good.unsqueeze(0),
            torch.ones(good.shape, dtype=torch.int64),
            good.half(),
            spoilt,
            torch.full_like(good, -INF),
        ):
            with pytest.raises(BadArtifact, match="model.safetensors") as refused:
                load(name, tensors={key: value})
            # Of a decoder the last layer is found by its name.
            assert key in str(refused.value) or key.startswith("decoder."), (key, value)


CONV = {"type": "conv", "channels": 2, "height": 9, "width": 7, "blocks": [3, 4]}


def mlp(layers, **more) -> dict:
    return {"encoder": {"type": "mlp", "layers": layers, **more}}


def fields(name: str, *values) -> list[tuple[dict, str]]:
    """Each of the values of a field, which the refusal has to name."""
    return [({name: value}, name) for value in values]


# By kind: fields, and the word that the refusal has to say.
REFUSED = {
    "alpaca-known": [
        *fields("kind", "hmm", ..., ["alpaca"]),
        *fields("format", 0, 2, "1", True),
        *fields("x_dim", 0, "3", True, 3.0, ...),
        *fields("hazard", 0, 1, -0.1, NAN, INF, "0.1", True),
        *fields("outlier_rate", -0.1, 1, NAN, "0.1", True),
        *fields("encoder", ..., {}, {"type": "rnn"}, {"type": "mlp"}),
        *fields("noise", "some", None, ["known"]),
        *fields("output_scaling", {"offset": [0], "scale": [1]}),
        *fields(
            "input_scaling",
            {"offset": [0, 0, 0]},
            {"offset": [0, 0, 0], "scale": [1]},
            {"offset": [0, 0, 0], "scale": [1, 1, 1e-51]},
            {"offset": [0, 0, 0], "scale": [1, 1, 1.1e50]},
            {"offset": [0, 0, -1.1e50], "scale": [1, 1, 1]},
            {"offset": [0, 0, NAN], "scale": [1, 1, 1]},
            {"offset": [[0], [0, 1]], "scale": [1, 1, 1]},
            {"offset": [0, 0, 10**400], "scale": [1, 1, 1]},
            0,
            {},
        ),
        *(({"y_dim": size}, "y_dim|shape") for size in (0, 3)),
        *(({"feature_dim": size}, "feature_dim|prior_cov") for size in (6, ...)),
        ({"encoder": {"type": "identity"}}, "feature_dim"),
        *((mlp(layers), "layers") for layers in ([3], [2, 7, 5], [3, 7, 4])),
        *((mlp(layers), r"encoder\.[0-2]") for layers in ([3, 8, 5], [3, "7", 5], [3, 7, 5, 5])),
        *((mlp([3, 7, 5], activation=name), "activation") for name in ("gelu", ["relu"], None)),
        *((mlp([3, 7, 5], linear=size), "linear") for size in (5, -1, True, "1")),
    ],
    "alpaca-mixture": fields(
        "regimes",
        [{"name": "a"}, {"name": "b"}],
        [{"name": "a"}, {"name": "b"}, {"name": "b"}],
        [{"name": "a"}, {"name": " "}, {"name": "c"}],
        3,
    ),
    "fleet": [
        *fields("output_scaling", {"offset": 0, "scale": 1}),
        *fields("chance", 0, 1, "0.5"),
        *(({"lags": value}, "lags|layers") for value in (-1, 1, "2")),
    ],
    "pcoc": [
        *fields("output_scaling", {"offset": 0, "scale": 1}),
        *(({"y_dim": size}, "y_dim|shape") for size in (1, 4)),
    ],
    "alpaca-conv": [
        *(
            ({"encoder": CONV | change}, words)
            for change, words in (
                ({"channels": 0}, "channels"),
                ({"height": 9.0}, "height"),
                ({"width": True}, "width"),
                ({"width": 8}, "x_dim"),
                ({"blocks": 3}, "blocks"),
                ({"blocks": []}, "blocks"),
                ({"blocks": [3, "4"]}, "blocks"),
                ({"blocks": [3, 6]}, "feature_dim"),
                ({"blocks": [3, 4, 4]}, "feature_dim"),
                ({"blocks": [2, 4]}, r"encoder.0.conv.weight"),
            )
        ),
    ],
    "lstm-lags": [
        ({"y_dim": 1}, "layers"),
        *(({"decoder": value}, "decoder|activation") for value in ({"activation": "gelu"}, [5])),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_description_is_refused_by_its_field(load, name):
    for changes, words in REFUSED[name]:
        with pytest.raises(BadArtifact, match=words) as refused:
            load(name, changes)
        assert "model.json" in str(refused.value) or "model.safetensors" in str(refused.value)


def test_tensors_whose_use_is_not_finite_are_refused(load):
    large = tensor([0.0, 1000.0])
    small = tensor([0.0, -1000.0])
    for name, key, value in (
        ("alpaca-known", "prior_covariance_factor", tensor([[1e200] * 5] * 5)),
        ("alpaca-known", "log_noise_variance", large),
        ("alpaca-known", "log_noise_variance", small),
        ("alpaca-lags", "log_noise_alpha", large),
        ("alpaca-lags", "log_noise_alpha", tensor([0.5, 0.0])),  # no variance exists
        ("alpaca-lags", "log_noise_beta", small),
        ("pcoc", "log_dirichlet", tensor([709.5, 709.5, 0])),  # their sum
        ("pcoc", "log_noise_variance", tensor([[-800.0] * 5] * 3)),
        ("pcoc", "log_prior_precision", tensor([[-740.0] * 5] * 3)),
        ("alpaca-conv", "encoder.0.norm.running_var", tensor([1.0, 1.0, -1.0])),
        ("lstm-lags", "lstm.weight_hh", torch.zeros(4, 0)),
        ("lstm-lags", "decoder.2.bias", tensor([1.0])),
    ):
        with pytest.raises(BadArtifact, match=key.removesuffix("bias")):
            load(name, tensors={key: value})


def test_what_may_be_left_out(load):
    model = load(fields={"input_scaling": ..., "output_scaling": None})
    assert (model.x_offset.tolist(), model.x_scale.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert (model.y_offset.tolist(), model.y_scale.tolist()) == ([0, 0], [1, 1])
    wide = {"offset": -1e50, "scale": 1e50}  # a number is the same for all
    assert load(fields={"input_scaling": wide}).x_scale.tolist() == [1e50] * 3
    assert load("fleet", {"chance": ...}).chance == 0.5
    assert load("lstm-lags", {"decoder": {"activation": "tanh"}}).decoder.activation == "tanh"
    names = [{"name": each} for each in ("idle", "up", "down")]
    assert load("alpaca-mixture", {"regimes": names}).typical == ("idle", "up", "down")


def test_an_encoder_that_does_nothing_and_an_input_that_is_missing(load):
    model = load(fields={"encoder": {"type": "identity"}, "x_dim": 5, "input_scaling": ...})
    assert model.encoder == Identity()
    x = tensor([[1.0, 2, 3, 4, 5]])
    assert torch.equal(model.encode(x, tensor([])), x)
    with pytest.raises(ValueError, match="input x of 5"):
        model.encode(None, tensor([]))


def test_features_of_time(load):
    t, parts = tensor([[0.0], [5.5], [30.0], [-2.0]]), [torch.ones(4, 1).double()]
    for period in (24, 168):
        angle = 2 * math.pi * t / period
        parts += [torch.sin(angle), torch.cos(angle)]

    def timed(periods, features=5, **more):
        encoder = {"type": "time", "periods": periods, **more}
        heads = ("prior_mean", "log_prior_precision", "log_noise_variance")
        fields = {"x_dim": 1, "feature_dim": features, "encoder": encoder, "input_scaling": ...}
        return load("pcoc", fields, {name: stored("pcoc")[1][name][:, :features] for name in heads})

    features = torch.cat(parts, -1)
    model = timed([24, 168.0])
    torch.testing.assert_close(model.encode(t, tensor([])), features)
    blocks = model.encode(t.reshape(2, 2, 1), tensor([]))
    torch.testing.assert_close(blocks.flatten(0, 1), features)
    expected = torch.cat((parts[0], t, *parts[1:3]), -1)
    found = timed([24], 4, trend=True).encode(t, tensor([]))
    torch.testing.assert_close(found, expected)
    for periods, more, words in (
        *(([24, each], {}, "periods") for each in (0, -1, NAN, INF, "168")),
        (24, {}, "periods"),
        ([24], {}, "feature_dim"),
        ([24, 168], {"trend": True}, "feature_dim"),
        ([24, 168], {"trend": 1}, "trend"),
    ):
        with pytest.raises(BadArtifact, match=words):
            timed(periods, **more)


def test_files_that_are_missing_or_cannot_be_read(load, tmp_path):
    load()
    whole = {name: (tmp_path / name).read_bytes() for name in ("model.json", "model.safetensors")}
    bad = {
        "model.json": [None, b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000],
        "model.safetensors": [None, b"", b"\0" * 7, b"\xff" * 64, b"{}" * 10],
    }
    tensors = whole["model.safetensors"]
    bad["model.safetensors"] += [tensors[:length] for length in range(8, len(tensors), 97)]
    for name, contents in bad.items():
        for content in contents:
            (tmp_path / name).unlink()
            if content is not None:
                (tmp_path / name).write_bytes(content)
            with pytest.raises(BadArtifact, match=name):
                artifact.load(tmp_path)
            (tmp_path / name).write_bytes(whole[name])
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(BadArtifact, match=name):
            artifact.load(tmp_path)
        (tmp_path / name).rmdir()
        (tmp_path / name).write_bytes(whole[name])
    artifact.load(tmp_path)


def test_hazards_are_numbers_tables_or_durations(load):
    for table in ([0.1], [0.0, 0, 0.5], [0.2] * 10_000, [0, 1]):
        found = load(fields={"hazard": table}).hazard
        assert found == tuple(table)
        assert all(isinstance(each, float) for each in found)
    durations = load(fields={"hazard": {"mean": 50, "shape": 4}}).hazard
    assert durations == hazards.negative_binomial(50, 4)
    wrong = [[], [0.1] * 10_001, [0, 0], [0.1, -0.1], [0.1, 1.1], [0.1, NAN], [0.1, "0.1"], [True]]
    wrong += [{"mean": 9}, {"mean": 9, "shape": "2"}, {"mean": True, "shape": 2}]
    wrong += [
        {"mean": 9, "shape": 2, "scale": 3},
        {"mean": 0.5, "shape": 2},
        {"mean": 9, "shape": 0},
        {"mean": 9, "shape": 1e-12},
        {"mean": 9, "shape": 2e3},
    ]
    for hazard in wrong:
        with pytest.raises(BadArtifact, match=r"model.json: hazard: "):
            load(fields={"hazard": hazard})


@pytest.fixture
def registry(monkeypatch):
    """Kinds registered in a test are gone after it."""
    monkeypatch.setattr(artifact, "_BUILDERS", dict(artifact._BUILDERS))


def level(parts: Parts) -> Gaussian:
    return Gaussian(y_dim=parts.size("y_dim"), kappa=parts.number("kappa", 0, default=0.5))


def test_a_kind_of_ones_own_needs_no_tensors(tmp_path, registry):
    artifact.register("level", level)
    artifact.register("level", level)  # a module imported twice
    with pytest.raises(ValueError, match="alpaca"):
        artifact.register("alpaca", level)
    artifact.save(tmp_path, {"kind": "level", "x_dim": 0, "y_dim": 2, "kappa": 0.25}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]
    assert artifact.load(tmp_path) == Gaussian(y_dim=2, kappa=0.25)
    artifact.save(tmp_path, {"kind": "level", "y_dim": 2}, {})
    assert artifact.load(tmp_path).kappa == 0.5
    artifact.save(tmp_path, {"kind": "level", "y_dim": 2, "kappa": 0}, {})
    with pytest.raises(BadArtifact, match="kappa"):
        artifact.load(tmp_path)
    artifact.save(tmp_path, {"kind": "hmm"}, {})
    with pytest.raises(BadArtifact, match="hmm.*level"):
        artifact.load(tmp_path)


def test_a_builder_that_fails_is_a_bad_artifact(tmp_path, monkeypatch):
    seen = []
    for builder, words in (
        (lambda parts: parts.description["colour"], "colour"),
        (lambda parts: parts.tensors["w"] + 1, "KeyError"),
        (lambda parts: 1 / 0, "ZeroDivisionError"),
        (lambda parts: "a model", "str"),
        (lambda parts: parts.tensor("w", 2), "model.safetensors: .*'w'"),
        (lambda parts: seen.append(parts), "NoneType"),
    ):
        monkeypatch.setitem(artifact._BUILDERS, "broken", builder)
        artifact.save(tmp_path, {"kind": "broken"}, {})
        with pytest.raises(BadArtifact, match=words):
            artifact.load(tmp_path)
    assert (seen[0].folder, seen[0].device) == (tmp_path, torch.device("cpu"))
