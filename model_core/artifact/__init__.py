"""Model artifacts: a folder `NAME/VERSION/` with `model.json` and `model.safetensors`.

`model.json` has `format` (1), `kind`, `x_dim`, `y_dim`, `hazard` and what the kind needs besides;
`artifact.encoders` says what an `encoder` may be, `artifact.builders` what each kind reads, and
`register` adds a kind (docs/own-model.md).
"""

from model_core.artifact.encoders import encoder
from model_core.artifact.files import FORMAT, Builder, kinds, load, register, save
from model_core.artifact.parts import Parts
from model_core.artifact_digest import DESCRIPTION, TENSORS

__all__ = [
    "DESCRIPTION",
    "FORMAT",
    "TENSORS",
    "Builder",
    "Parts",
    "encoder",
    "kinds",
    "load",
    "register",
    "save",
]
