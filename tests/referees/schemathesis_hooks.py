"""What schemathesis has to know of this interface."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    rows = value if isinstance(value, list) else [value]
    return b"\n".join(json.dumps(row).encode() for row in rows)


@schemathesis.serializer("application/x-protobuf")
def message(context, value):
    """Bytes as they are: those of remote writes have tests of their own."""
    data = getattr(value, "data", value)
    return data if isinstance(data, bytes) else str(data).encode()
