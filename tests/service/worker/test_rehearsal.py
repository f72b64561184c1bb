"""What a worker tries before its first lease."""

import pytest
import torch

from service.process import Refused
from service.worker.rehearsal import check_device


@pytest.mark.parametrize(
    ("device", "says"),
    [("gpu", "cannot be used"), (f"cuda:{torch.cuda.device_count()}", "is not there")],
)
def test_a_device_that_is_not_there_is_refused(device, says):
    with pytest.raises(Refused, match=says):
        check_device(device)


def test_the_processor_is_always_there():
    check_device("cpu")
