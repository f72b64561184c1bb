"""Configuration of a training run, from presets and TOML files; kept in the run's folder."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from training.errors import BadConfig

OWN = "data"  # the experiment of own series
Options = dict[str, Any]
Activation = Literal["relu", "tanh", "identity"]


class Section(BaseModel):
    """Immutable settings; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """The model's architecture and first values."""

    kind: Literal["alpaca", "fleet", "pcoc", "lstm"] = "alpaca"
    widths: tuple[PositiveInt, ...] = Field(
        default=(128, 128), description="Hidden layers of an MLP encoder."
    )
    features: int = Field(default=32, ge=1, description="Outputs of an MLP encoder.")
    activation: Activation = "relu"
    output_activation: Activation = "tanh"
    image: tuple[PositiveInt, PositiveInt, PositiveInt] | None = Field(
        default=None,
        description="Channels, height and width of inputs that are images: convolutions.",
    )
    blocks: tuple[PositiveInt, ...] = Field(
        default=(64, 64, 64, 64), description="Channels of each conv block."
    )
    mixed_precision: bool = Field(
        default=False, description="Convolutions in bfloat16 while training; weights stay float32."
    )
    hidden: int = Field(default=64, ge=1, description="State of an LSTM.")
    decoder: tuple[PositiveInt, ...] = Field(
        default=(128,), description="Inner layers of an LSTM's decoder."
    )
    identity: bool = Field(default=False, description="Features are the inputs: no network.")
    lags: int = Field(default=0, ge=0, le=256, description="Labels before that are inputs too.")
    priors: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Typical regimes: priors that each regime draws one of; of ALPaCA.",
    )
    prior_scale: float = Field(
        default=0.18, gt=0, description="First scale of the prior's parameters."
    )
    noise: Literal["known", "unknown"] = Field(
        default="known", description="Gaussian noise of a learned variance, or Student-t."
    )
    noise_variance: float = Field(default=1.0, gt=0, description="The first, of scaled labels.")
    learn_noise: bool = True
    dirichlet: float = Field(
        default=10_000.0, gt=0, description="Concentration of each class, fixed."
    )
    hazard: float = Field(
        default=0.1, gt=0, lt=1, description="Hazard, the first where it is learned."
    )
    learn_hazard: bool = True

    @model_validator(mode="after")
    def _of_alpaca(self) -> ModelConfig:
        if self.priors > 1 and self.kind != "alpaca":
            raise ValueError(
                f"priors is {self.priors}, expected 1 for kind {self.kind!r}: leave it out, or use "
                "kind alpaca (--model alpaca)"
            )
        return self

    @model_validator(mode="after")
    def _of_a_fleet(self) -> ModelConfig:
        if self.kind != "fleet":
            return self
        if self.noise != "unknown":
            raise ValueError(
                f"noise is {self.noise!r}, but that of a fleet is always unknown: leave it out, or "
                "use --model alpaca"
            )
        if self.identity or self.image is not None:
            raise ValueError(
                "identity and image are not for a fleet, whose encoder is an MLP: leave them out, "
                "or use --model alpaca"
            )
        return self


class Objective(Section):
    """Training objective: the mean negative log predictive under one way of conditioning."""

    mode: str = Field(default="moca", description="moca, oracle, toe, coe or swN (the last N).")
    supervision: float = Field(
        default=0.0, ge=0, le=1, description="Share of true switches revealed."
    )
    prior_weight: float = Field(
        default=0.0, ge=0, lt=1, description="Weight of the prior in an oracle's likelihood."
    )

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

    learning_rate: float = Field(default=0.005, gt=0)
    batch: int = Field(default=50, ge=1, description="Windows in an iteration, over all processes.")
    length: int = Field(default=100, ge=2, description="Observations in a window.")
    iterations: int = Field(default=7500, ge=1)
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="When to stop: time of the processor on a CPU, else of the clock.",
    )
    schedule: Literal["step", "cosine", "constant"] = "step"
    decay_every: int = Field(
        default=1000, ge=1, description="Iterations between steps of the rate."
    )
    decay: float = Field(default=0.5, gt=0, le=1, description="Factor of each step.")
    warmup: int = Field(default=0, ge=0, description="Iterations over which the rate rises from 0.")
    clip: float | None = Field(default=10.0, gt=0, description="Largest norm of the gradient.")
    dtype: Literal["float32", "float64"] = "float32"


class ValidationConfig(Section):
    """Validation on fixed windows; the best parameters are kept."""

    every: int = Field(default=100, ge=1, description="Iterations between measurements.")
    windows: int = Field(default=50, ge=1)
    length: int | None = Field(
        default=None, ge=2, description="Observations; as in training by default."
    )
    metric: Literal["nll", "accuracy"] = "nll"
    patience: int | None = Field(
        default=None, ge=1, description="Measurements without a better one after which to stop."
    )


class Config(Section):
    """Configuration of a training run; the experiment interprets `data`."""

    experiment: str
    name: str = Field(
        default="",
        pattern=r"^([^/\\.][^/\\]*)?$",  # part of a folder's name
        description="Of a variation, where runs are compared.",
    )
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


S = TypeVar("S", bound=Section)


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
        where = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
        raise BadConfig(where) from error
