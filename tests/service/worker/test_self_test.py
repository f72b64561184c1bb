"""What a worker tries before its first lease."""

import pytest
import torch

from service.errors.base import StartupError
from service.worker.self_test import check_device


@pytest.mark.parametrize(
    ("device", "says"),
    [("gpu", "cannot use --device"), (f"cuda:{torch.cuda.device_count()}", "does not exist")],
)
def test_a_device_that_is_not_there_is_refused(device, says):
    with pytest.raises(StartupError, match=says):
        check_device(device)


def test_the_processor_is_always_there():
    check_device("cpu")
