"""What schemathesis has to know of this interface."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    rows = value if isinstance(value, list) else [value]
    return b"\n".join(json.dumps(row).encode() for row in rows)
