"""Fused kernels are run by Triton's interpreter, chosen before Triton is loaded."""

import os

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="no Triton here: pip install -e '.[triton]', on Linux")


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield
