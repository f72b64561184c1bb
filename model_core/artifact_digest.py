"""Files of an artifact, and the digest that tells it from another in its folder.

No torch here, which `model_core.artifact` needs: the service's API lists artifacts.
"""

from __future__ import annotations

import json
from hashlib import blake2b, file_digest
from pathlib import Path

DESCRIPTION = "model.json"
TENSORS = "model.safetensors"
DESCRIPTIVE = ("description", "regimes", "training")  # fields that no number needs


def digest(folder: Path) -> str:
    """Digest of all that the numbers of an artifact depend on; raises OSError or ValueError."""
    described = json.loads((folder / DESCRIPTION).read_bytes())
    if not isinstance(described, dict):
        raise ValueError(f"{DESCRIPTION}: expected an object")
    essential = {name: value for name, value in described.items() if name not in DESCRIPTIVE}
    # In one form, however it was written.
    hashed = blake2b(json.dumps(essential, sort_keys=True).encode(), digest_size=16)
    tensors = folder / TENSORS
    if tensors.exists():  # some kinds need none
        with tensors.open("rb") as opened:
            file_digest(opened, lambda: hashed)
    return hashed.hexdigest()
