"""Commands of several streams as rows of one, as requests for many streams send them."""

from math import nan

from service.wire import Ingest, ObserveMany, rows


def pack(commands):
    """Commands of distinct streams, all of one kind and with the same options, as rows."""
    first = commands[0]
    observations = [seen for command in commands for seen in command.observations]
    plain = [rows.is_plain(seen) for seen in observations]
    pairs = [*zip(observations, plain, strict=True)]
    y, outputs, x, inputs = rows.columns(
        [seen.y if own else nan for seen, own in pairs],
        [seen.x if own else None for seen, own in pairs],
    )
    counts = [len(command.observations) for command in commands]
    times = [seen.time for seen in observations]
    return ObserveMany(
        [command.stream for command in commands],
        y,
        counts if set(counts) != {1} else None,
        times if any(times) else None,
        outputs,
        x,
        inputs,
        [seen for seen, own in pairs if not own] or None,
        rows.unless_empty([command.seq for command in commands]),
        rows.unless_empty([command.key for command in commands]),
        rows.unless_empty([command.digest for command in commands]),
        [command.settings for command in commands if isinstance(command, Ingest)] or None,
        first.full,
        first.belief,
        first.components,
        first.quantiles,
    )
