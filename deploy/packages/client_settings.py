"""Write `moca_client/stream_settings.py` from the table of settings; `--check`: only compare.

With them comes what pictures by the client and by `Detector` have in common.
"""

import sys
from inspect import getsource
from pathlib import Path
from typing import Any

from model_core.pictures import DRAWN, drawn_outputs
from model_core.stream_settings import ALARM_SILENCE, DEFAULTS, TABLE, Hazard, Setting

TARGET = Path(__file__).parents[2] / "moca_client" / "stream_settings.py"
HEAD = f'''\
"""Types of a stream's settings, made from `model_core/stream_settings.py`: `make client`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypedDict

from msgspec import Meta

# Default that pictures draw, and observations between the marks of anomalies.
ANOMALY_ALARM = {DEFAULTS.anomaly_alarm}
ALARM_SILENCE = {ALARM_SILENCE}
DRAWN = {DRAWN}  # outputs in a picture, at most

Hazard = Annotated[
    float | list[float] | dict[str, float] | None,
    Meta(description="a number, a table by run length, or mean and shape of regime durations"),
]


class StreamSettings(TypedDict, total=False):
    """Settings of a stream; null: the model's, or none. Changes have the changed ones alone."""

'''


def _type(setting: Setting) -> str:
    kind: Any = setting.type
    if kind == Hazard:
        return "Hazard"
    name = str(kind)
    if name.startswith("<class"):
        name = kind.__name__
    return f"{name} | None" if setting.optional else name


def text() -> str:
    """Return the source of the types."""
    members = "".join(f"    {name}: {_type(setting)}\n" for name, setting in TABLE.items())
    return f"{HEAD}{members}\n\n{getsource(drawn_outputs)}"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        TARGET.write_text(text())
    elif TARGET.read_text() != text():
        sys.exit(f"{TARGET.name} differs from the table of settings: run `make client`")
