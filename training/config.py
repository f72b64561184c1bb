"""Configuration of a training run, from presets and TOML files; kept in the run's folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from model_core import wording
from model_core.wording import did_you_mean
from training.errors import BadConfig

OWN = "data"  # the experiment of own series
FOLDER = r"[^/\\.][^/\\]*"  # part of a folder's name
METHODS = {"moca": "MOCA", "oracle": "oracle", "toe": "TOE", "coe": "COE"}  # of modes
Options = dict[str, Any]
Activation = Literal["relu", "tanh", "identity"]


class Section(BaseModel):
    """Immutable settings; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """The model's architecture and first values."""

    kind: Literal["alpaca", "fleet", "pcoc", "lstm"] = "alpaca"
    # Of an MLP encoder: its hidden layers, its outputs, and what follows both.
    widths: tuple[PositiveInt, ...] = (128, 128)
    features: PositiveInt = 32
    activation: Activation = "relu"
    output_activation: Activation = "tanh"
    # Of inputs that are images, convolved: channels, height and width; channels of each block.
    image: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    blocks: tuple[PositiveInt, ...] = (64, 64, 64, 64)
    mixed_precision: bool = False  # convolutions in bfloat16 in training; weights stay float32
    # Of an LSTM: its state, and the inner layers of its decoder.
    hidden: PositiveInt = 64
    decoder: tuple[PositiveInt, ...] = (128,)
    lags: int = Field(default=0, ge=0, le=256)  # labels before that are inputs, too
    priors: int = Field(default=1, ge=1, le=64)  # of ALPaCA: each regime draws one of them
    prior_scale: PositiveFloat = 0.18  # first scale of the prior's parameters
    noise: Literal["known", "unknown"] = "known"  # Gaussian of a learned variance, or Student-t
    noise_variance: PositiveFloat = 1.0  # the first, of scaled labels
    learn_noise: bool = True
    dirichlet: PositiveFloat = 10_000.0  # concentration of each class, fixed
    hazard: float = Field(default=0.1, gt=0, lt=1)  # the first where it is learned
    learn_hazard: bool = True

    @model_validator(mode="after")
    def _kinds(self) -> ModelConfig:
        if self.priors > 1 and self.kind != "alpaca":
            raise ValueError(
                f"priors is {self.priors}, expected 1 for kind {self.kind!r}: leave it out, or use "
                "kind alpaca (--model alpaca)"
            )
        if self.kind == "fleet" and self.noise != "unknown":
            raise ValueError(
                f"noise is {self.noise!r}, but that of a fleet is always unknown: leave it out, or "
                "use --model alpaca"
            )
        if self.kind == "fleet" and self.image is not None:
            raise ValueError(
                "image is not for a fleet, whose encoder is an MLP: leave it out, or use --model "
                "alpaca"
            )
        return self


class Objective(Section):
    """Training objective: the mean negative log predictive under one way of conditioning."""

    mode: str = "moca"  # moca, oracle, toe, coe or swN (the last N)
    supervision: float = Field(default=0.0, ge=0, le=1)  # share of true switches revealed
    prior_weight: float = Field(default=0.0, ge=0, lt=1)  # of the prior in an oracle's likelihood

    @field_validator("mode")
    @classmethod
    def _known(cls, mode: str) -> str:
        if not re.fullmatch(r"moca|oracle|toe|coe|sw[1-9]\d*", mode):
            raise ValueError(f"expected moca, oracle, toe, coe or swN such as sw10, got {mode!r}")
        return mode

    @property
    def window(self) -> int | None:
        """Length of the sliding window; 0 for `toe`, None for modes without one."""
        if self.mode == "toe":
            return 0
        return int(self.mode[2:]) if self.mode.startswith("sw") else None


class OptimiserConfig(Section):
    """Adam, its schedule, and the stopping criteria."""

    learning_rate: PositiveFloat = 0.005
    batch: PositiveInt = 50  # windows in an iteration, over all processes
    length: int = Field(default=100, ge=2)  # observations in a window
    iterations: PositiveInt = 7500
    minutes: PositiveFloat | None = None  # of the processor on a CPU, else of the clock; then stop
    schedule: Literal["step", "cosine", "constant"] = "step"
    decay_every: PositiveInt = 1000  # iterations between steps of the rate
    decay: float = Field(default=0.5, gt=0, le=1)  # factor of each step
    warmup: NonNegativeInt = 0  # iterations over which the rate rises from 0
    clip: PositiveFloat | None = 10.0  # largest norm of the gradient
    dtype: Literal["float32", "float64"] = "float32"

    @property
    def precision(self) -> torch.dtype:
        """The dtype of torch."""
        return torch.float32 if self.dtype == "float32" else torch.float64


class ValidationConfig(Section):
    """Validation on fixed windows; the best parameters are kept."""

    every: PositiveInt = 100  # iterations between measurements
    windows: PositiveInt = 50
    length: int | None = Field(default=None, ge=2)  # observations; None: as in training
    metric: Literal["nll", "accuracy"] = "nll"
    patience: PositiveInt | None = None  # measurements without a better one, after which to stop


class Config(Section):
    """Configuration of a training run; the experiment interprets `data`.

    name: of a variation, where runs are compared; part of a folder's name.
    """

    experiment: str
    name: str = Field(default="", pattern=f"^({FOLDER})?$")
    data: dict[str, Any] = {}
    model: ModelConfig = ModelConfig()
    objective: Objective = Objective()
    optimiser: OptimiserConfig = OptimiserConfig()
    validation: ValidationConfig = ValidationConfig()
    seed: int = Field(default=0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _own_fleet(self) -> Config:
        if self.model.kind == "fleet" and self.experiment != OWN:
            raise ValueError(
                "model.kind is 'fleet', which is for --data: expected alpaca, pcoc or lstm for the "
                f"experiment {self.experiment!r}"
            )
        return self

    @property
    def method(self) -> str:
        """Name in tables and figures: the mode, followed by the variation's name."""
        mode = self.objective.mode
        return f"{METHODS.get(mode, mode.upper())} {self.name}".strip()

    def setting(self, path: str) -> float | None:
        """A number among the settings, by its path; None where the data have none."""
        value: Any = self.model_dump()
        for name in path.split("."):
            value = value.get(name)
        return None if value is None else float(value)


S = TypeVar("S", bound=Section)


def nested(path: str, value: Any) -> Options:
    """Settings of one value, by its path."""
    for name in reversed(path.split(".")):
        value = {name: value}
    settings: Options = value
    return settings


def merged(base: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Merge nested settings, the later over the earlier; BadConfig for a malformed section."""
    result = dict(base)
    for other in others:
        for name, value in other.items():
            old = result.get(name)
            if isinstance(old, dict) and isinstance(value, dict):
                value = merged(old, value)
            elif name in result and isinstance(old, dict) != isinstance(value, dict):
                raise BadConfig(f"{name}: expected a value or a section of settings, got both")
            result[name] = value
    return result


def checked(section: type[S], settings: Options) -> S:
    """Validated settings of one section; raises BadConfig."""
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        raise BadConfig("; ".join(_fault(section, one) for one in error.errors())) from error


def _fault(section: type[BaseModel], error: Mapping[str, Any]) -> str:
    """Place and reason of a wrong setting; for an unknown one also the name of a similar one."""
    loc = error["loc"]
    where = ".".join(map(str, loc))
    if error["type"] != "extra_forbidden":
        return f"{where}: {wording.described(error)}"
    parent: Any = section
    for part in loc[:-1]:
        parent = parent.model_fields[part].annotation
    names = list(parent.model_fields)
    meant = did_you_mean(loc[-1], names) or f"; it has {', '.join(names)}"
    return f"{where}: no such setting{meant}"
