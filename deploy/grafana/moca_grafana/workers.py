"""Workers and Redis: ownership, batches, checkpoints, trouble, memory, the append-only file."""

from __future__ import annotations

from moca_grafana.limits import above, below, none
from moca_grafana.page import Page
from moca_grafana.panels import Panel, Query, What, lines, number

OURS = 'job=~"moca-api|moca-worker"'
EACH = "{{job}} {{instance}}"


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "moca-workers",
        "MOCA: workers and Redis",
        "Ownership, batches, checkpoints, quarantine, and the store.",
        {
            "Now": _now(),
            "Ownership and work": _ownership() + _work(),
            "State": _state(),
            "Trouble": _trouble(),
            "Redis": _redis(),
        },
    )


def _now() -> list[Panel]:
    up = What(
        "Targets up",
        "Share of known APIs and workers that respond; alert MocaTargetDown.",
        "percentunit",
        below(1, 0.5),
    )
    owned = What(
        "Owned partitions",
        "Share of partitions owned by a worker; alert MocaPartitionUnowned.",
        "percentunit",
        below(1, 0.99),
    )
    commits = What(
        "Commits", "Commits per second; alert MocaCommitsStopped.", "suffix: /s", below(0.01, 0.001)
    )
    redis = What("Redis", "1 while every API can reach it.", "short", below(1, 1))
    append = What(
        "Append-only file status",
        "1: enabled and written; 0: disabled or failing.",
        "short",
        below(1, 1),
    )
    memory = What(
        "Redis memory",
        "Share of maxmemory, 0 without a limit; load is shed at 85 %. Alert MocaRedisMemory.",
        "percentunit",
        above(0.75, 0.85),
    )
    kept = (
        'min(moca_redis_append_only{job="moca-api"})'
        ' - max(moca_redis_append_only_failing{job="moca-api"})'
    )
    unowned = 'max(moca_unowned_partitions{job="moca-api"})'
    has_worker = f"sum(moca_owned_partitions) / (sum(moca_owned_partitions) + {unowned} > 0)"
    return [
        number(up, f"avg(up{{{OURS}}})", 0),
        number(owned, has_worker, 0),
        number(commits, "moca:commits:rate1m"),
        number(redis, 'min(moca_redis_up{job="moca-api"})', 0),
        number(append, kept, 0),
        number(memory, "max(moca_redis_memory_ratio)", 1),
    ]


def _ownership() -> list[Panel]:
    owned = What(
        "Partitions by worker",
        "Workers share them evenly. With `moca serve`, one series for all workers.",
        "short",
        above(4096, 16384),
    )
    unowned = What(
        "Unowned partitions",
        "A takeover takes up to lease_ttl_ms (5 s); alert MocaPartitionUnowned.",
        "short",
        above(1, 2),
    )
    resident = What(
        "Resident streams", "Streams whose state is in device memory.", "short", above(1e5, 1e6)
    )
    by_worker = "sum by (job, instance) (moca_owned_partitions) > 0"
    return [
        lines(owned, Query(by_worker, EACH), span=8),
        lines(unowned, Query('max(moca_unowned_partitions{job="moca-api"})', "unowned"), span=8),
        lines(resident, Query("sum(moca_resident_streams)", "resident"), span=8),
    ]


def _work() -> list[Panel]:
    batch = What(
        "Observations per step (batch size)",
        "Mean and 99 %; grows with load.",
        "short",
        above(512, 2048),
    )
    busy = What(
        "Time in compute and commit",
        "Busy seconds per second, all workers; close to their number: saturated.",
        "suffix: s/s",
        above(1, 8),
    )
    cpu = What(
        "CPU time of processes",
        "APIs and workers that run alone; `moca serve` does not report it (0).",
        "suffix: cores",
        above(0.8, 0.95),
    )
    name = "moca_batch_size_observations"
    mean = (
        f"sum(rate({name}_sum[$__rate_interval]))"
        f" / (sum(rate({name}_count[$__rate_interval])) > 0) or vector(0)"
    )
    high = f"histogram_quantile(0.99, sum by (le) (rate({name}_bucket[$__rate_interval])))"
    stages = (
        "sum by (stage) (rate("
        'moca_stage_duration_seconds_sum{stage=~"compute|commit"}[$__rate_interval]))'
    )
    process = f"rate(process_cpu_seconds_total{{{OURS}}}[$__rate_interval]) or on () vector(0)"
    return [
        lines(batch, Query(mean, "mean"), Query(high, "99 %"), span=8),
        lines(busy, Query(stages, "{{stage}}"), span=8),
        lines(cpu, Query(process, EACH), span=8),
    ]


def _state() -> list[Panel]:
    age = What(
        "Oldest checkpoint",
        "Resident streams that advanced since. Streams with rare observations have old "
        "checkpoints; alert MocaCheckpointOld combines both panels.",
        "s",
        above(3600, 86400),
    )
    lag = What(
        "Maximum over resident streams; a checkpoint is due every MOCA_CHECKPOINT_EVERY (64).",
        "Most of any resident stream; written every MOCA_CHECKPOINT_EVERY (64).",
        "short",
        above(128, 256),
    )
    size = What("Checkpoints written", "Bytes per second.", "Bps", above(10e6, 100e6))
    replayed = What(
        "Observations replayed",
        "Rebuilds states after a takeover, a start, or a move to another model.",
        "suffix: /s",
        above(1000, 10000),
    )
    written = "sum(rate(moca_checkpoint_bytes_sum[$__rate_interval]))"
    again = "sum(rate(moca_replayed_observations_total[$__rate_interval]))"
    return [
        lines(age, Query("max(moca_checkpoint_age_seconds)", "oldest"), span=6),
        lines(lag, Query("max(moca_checkpoint_lag_observations)", "furthest"), span=6),
        lines(size, Query(written, "written"), span=6),
        lines(replayed, Query(again, "replayed"), span=6),
    ]


def _trouble() -> list[Panel]:
    fenced = What(
        "Fenced commits, 10 minutes",
        "Commits rejected because the worker no longer owned the partition; nothing was "
        "written twice. Alert MocaFencedCommitSurge.",
        "short",
        above(1, 10),
    )
    aside = What(
        "Quarantined or discarded, one hour",
        "Quarantined commands, unreadable states, repaired logs, non-finite steps.",
        "short",
        above(1, 2),
    )
    up = What("Targets", "1 while a process responds to Prometheus.", "short", below(1, 1))
    kinds = {
        "quarantined": "quarantined_commands",
        "unreadable": "corrupt_states",
        "repaired": "log_rollbacks",
        "non-finite": "numerical_faults",
    }
    sums = [Query(f"sum(increase(moca_{name}_total[1h]))", title) for title, name in kinds.items()]
    return [
        lines(fenced, Query("moca:fenced_commits:increase10m", "fenced"), span=8),
        lines(aside, *sums, span=8),
        lines(up, Query(f"up{{{OURS}}}", EACH), span=8),
    ]


def _redis() -> list[Panel]:
    memory = What("Memory", "Memory used by Redis.", "bytes", none())
    share = What("Share of maxmemory", "0 without a limit.", "percentunit", above(0.75, 0.85))
    reached = What("Reached", "1 while an API can reach Redis.", "short", below(1, 1))
    append = What(
        "Append-only file",
        "Enabled: 1 while there is one. Failing: 1 while it cannot be written; Redis soon "
        "refuses writes.",
        "short",
        above(1.1, 1.2),
    )
    kept = Query('min(moca_redis_append_only{job="moca-api"})', "enabled")
    failing = Query('max(moca_redis_append_only_failing{job="moca-api"})', "failing")
    return [
        lines(memory, Query("max(moca_redis_used_memory_bytes)", "used"), span=6),
        lines(share, Query("max(moca_redis_memory_ratio)", "used"), span=6),
        lines(reached, Query('moca_redis_up{job="moca-api"}', "{{instance}}"), span=6),
        lines(append, kept, failing, span=6),
    ]
