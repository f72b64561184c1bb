"""Reading the Turing Change Point Dataset."""

import json
import math

from training.data import tcpd


def test_series_are_rows_by_name(tmp_path):
    found = {
        "b": {"values": [[1, None, 3]], "annotations": {"7": [2]}},
        "a": {"values": [[1.5, 2], [3, 4]], "annotations": {"6": [], "8": [1]}},
    }
    (tmp_path / "tcpd.json").write_text(json.dumps(found))
    a, b = tcpd.load(tmp_path)
    assert a == ("a", [[1.5, 3.0], [2.0, 4.0]], {"6": [], "8": [1]})
    assert b.values[0] == [1.0]
    assert math.isnan(b.values[1][0])
    assert b.annotations == {"7": [2]}
