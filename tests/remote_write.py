"""Remote writes as a Prometheus sends them, made with protobuf's own messages."""

import cramjam
import msgspec

from service import wire
from service.api.parsing.samples import Version, _remote_write

V1 = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V2 = V1 | {"Content-Type": f"application/x-protobuf;proto={Version.V2.value}"}
CLASS = _remote_write.classes


def raw(settings):
    """Settings as an `Ingest` has them."""
    return msgspec.Raw(wire.encode(settings))


def packed(message):
    return bytes(cramjam.snappy.compress_raw(message.SerializeToString()))


def version_1(*series):
    """Body of a request; series: (labels, [(value, ms)...])."""
    request = CLASS["Request1"]()
    for labels, samples in series:
        each = CLASS["Series1"]()
        for name, value in labels.items():
            label = CLASS["Label"](name=name, value=value)
            each.labels.append(label.SerializeToString())
        for value, ms in samples:
            each.samples.add(value=value, timestamp=ms)
        request.timeseries.append(each.SerializeToString())
    return packed(request)


def version_2(*series, histograms=()):
    request = CLASS["Request2"]()
    request.symbols.append("")
    for labels, samples in series:
        each = request.timeseries.add()
        for text in (text for pair in labels.items() for text in pair):
            if text not in request.symbols:
                request.symbols.append(text)
            each.labels_refs.append(list(request.symbols).index(text))
        for value, ms in samples:
            each.samples.add(value=value, timestamp=ms)
        each.histograms.extend(histograms)
    return packed(request)
