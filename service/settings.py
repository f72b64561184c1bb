"""Settings of the service's processes. Only the command line reads the environment."""

from __future__ import annotations

import tomllib
from enum import Flag, auto
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from model_core.stream_settings import DEFAULT_MODEL
from service.api_keys import parse_rate
from service.problems import StartupError


class Process(Flag):
    """Processes whose commands have a setting as an option; `moca serve` has nearly all."""

    API = auto()
    WORKER = auto()
    WEBHOOKS = auto()


API = Process.API
WORKER = Process.WORKER
WEBHOOKS = Process.WEBHOOKS
EACH = API | WORKER | WEBHOOKS


class Settings(BaseSettings):
    """Settings of one process; each is also an environment variable `MOCA_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="MOCA_", frozen=True, extra="ignore")

    redis_url: Annotated[str | None, EACH] = Field(
        None, description="URL of Redis >= 7.0 or Valkey; default: an embedded server"
    )
    redis_password_file: Annotated[Path | None, EACH] = Field(
        None, description="file that holds the Redis password, instead of a password in the URL"
    )
    data_dir: Annotated[Path, WEBHOOKS] = Field(
        Path("moca-data"), description="data folder of the embedded store"
    )
    models_dir: Annotated[Path, API | WORKER] = Field(
        Path("models"), description="folder of model artifacts"
    )
    host: Annotated[str, API] = Field("127.0.0.1", description="address that the API listens on")
    port: Annotated[int, API] = Field(
        8000, ge=0, le=65535, description="port that the API listens on"
    )
    partitions: Annotated[int, EACH] = Field(
        64,
        ge=1,
        le=4096,
        description="number of partitions of a new store; `moca serve` chooses 4 per worker, "
        "unless stated, and takes the number of a store that exists",
    )
    log_level: Annotated[str, EACH] = Field(
        "info",
        pattern="^(debug|info|warning|error)$",
        description="least severe lines of the log: debug, info, warning or error",
    )
    workers: int = Field(1, ge=1, description="number of worker processes of `moca serve`")
    device: Annotated[str, WORKER] = Field("cpu", description="torch device of a worker")
    metrics_port: Annotated[int, WORKER | WEBHOOKS] = Field(
        0, ge=0, le=65535, description="port of a worker's /metrics endpoint; 0: disabled"
    )
    plugins: Annotated[str, WORKER] = Field(
        "", description="comma-separated modules that register model kinds; imported by workers"
    )
    default_model: Annotated[str, API | WORKER] = Field(
        DEFAULT_MODEL,
        description="model of streams that name none; with `averaged`, those of 2 to 32 outputs "
        "use `joint`",
    )
    false_alarms_per_day: Annotated[float | None, API] = Field(
        None,
        gt=0,
        description="false alarms a day over all streams that state neither false_alarm_every nor "
        "confirm_after: gives each of them a false_alarm_every by its own pace and the number of "
        "streams, at least 1000; default: 10000 observations for each stream",
    )

    lease_ttl_ms: Annotated[int, WORKER | WEBHOOKS] = Field(
        5000,
        ge=100,
        description="partition lease TTL: how long a worker keeps a partition after its last "
        "heartbeat",
    )
    worker_hang_s: Annotated[float, WORKER] = Field(
        60.0,
        ge=1,
        description="watchdog: a worker without progress for this long exits and is restarted; "
        "must exceed the slowest batch",
    )
    request_deadline_s: Annotated[float, API | WORKER] = Field(
        30.0, gt=0, description="maximum time a request waits for its outcome"
    )
    max_results_bytes: Annotated[int, WORKER] = Field(
        32 << 20,
        ge=4 << 20,  # a long outcome is read from there, while others are committed
        description="maximum bytes of outcomes kept in the store for one API process and "
        "partition, for twice `request_deadline_s`, in case it missed them; those of the last "
        "commit are kept in any case; at least 4 MiB",
    )
    max_pending: Annotated[int, API] = Field(
        10_000, ge=1, description="maximum observations queued per partition; more get 429"
    )
    max_waiting: Annotated[int, API] = Field(
        20_000,
        ge=1,
        description="maximum requests waiting for an outcome per API process; more get 429",
    )
    max_wait_s: Annotated[float, API] = Field(
        1.0,
        ge=0,
        description="latency target for 99 % of accepted requests under overload; new requests "
        "get 429 while the estimated wait exceeds 40 % of it; 0: no load shedding by "
        "wait",
    )
    max_connections: Annotated[int, API] = Field(
        10_000,
        ge=16,
        description="maximum open connections per API process; beyond it connections are closed "
        "once they are answered; capped at the limit on open files minus 256",
    )
    max_body_bytes: Annotated[int, API] = Field(
        8 << 20, ge=1024, description="maximum size of a request body"
    )
    max_observations: Annotated[int, API] = Field(
        10_000, ge=1, description="maximum observations per request"
    )
    max_dimension: Annotated[int, API | WORKER] = Field(
        256, ge=1, description="maximum length of x and of y"
    )
    max_hypotheses: Annotated[int, API | WORKER] = Field(
        2000, ge=2, description="upper limit of the stream setting max_hypotheses"
    )
    max_history: Annotated[int, API | WORKER] = Field(
        100_000, ge=0, description="upper limit of the stream setting history"
    )
    max_replay: Annotated[int, WORKER] = Field(
        5000,
        ge=1,
        description="maximum observations rerun at once, by feedback, what-if, a segmentation in "
        "hindsight or a move to another model",
    )
    max_windows: Annotated[int, API] = Field(
        200, ge=0, description="maximum windows of the calendar"
    )
    max_snapshot_bytes: Annotated[int, API] = Field(
        64 << 20, ge=1024, description="maximum size of an imported snapshot"
    )
    prometheus_rules: Annotated[Path | None, API] = Field(
        None,
        description="TOML file of rules by which series of POST /v1/prometheus/write become "
        "streams; default: each series becomes one, with an interval of 60 s",
    )
    max_result_streams: Annotated[int, API] = Field(
        1000, ge=1, description="maximum streams in an answer of GET /v1/prometheus/results"
    )
    memory_shed_fraction: Annotated[float, API] = Field(
        0.85, gt=0, le=1, description="share of Redis maxmemory above which writes are shed"
    )

    require_keys: Annotated[bool, API] = Field(
        False, description="require an API key for every call, even before any key exists"
    )
    open_access: Annotated[bool, API] = Field(
        False, description="accept every call without an API key, from any machine"
    )
    host_names: Annotated[str, API] = Field(
        "",
        description="comma-separated Host names to accept when no API key is configured, in "
        "addition to localhost, IP addresses and dotless names; *: any (the default "
        "with --open)",
    )
    metrics_key_required: Annotated[bool, API] = Field(
        False, description="require an API key with the scope read for /metrics"
    )
    key_rate: Annotated[str, API] = Field(
        "none",
        description="default rate limit of API keys without their own, such as 100/second; none: "
        "no limit",
    )
    key_cache_s: Annotated[float, API] = Field(
        5.0, gt=0, le=3600, description="maximum delay until a new or revoked API key takes effect"
    )
    cors_origins: Annotated[str, API] = Field(
        "", description="comma-separated origins allowed by CORS; *: any; empty: none"
    )
    no_console: Annotated[bool, API] = Field(False, description="do not serve the web console at /")
    access_log: Annotated[str, API] = Field(
        "off", description="access log: off, stderr, or a file; one JSON line per request"
    )
    keep_alive_s: Annotated[int, API] = Field(
        75,
        ge=1,
        description="keep-alive timeout of idle connections; must exceed that of proxies in "
        "front of the API, commonly 60 s",
    )

    checkpoint_every: Annotated[int, WORKER] = Field(
        64, ge=1, description="observations between checkpoints of a stream"
    )
    resident_bytes: Annotated[int | None, WORKER] = Field(
        None,
        ge=1 << 20,
        description="maximum memory for resident streams in a worker, device and host together; "
        "default: 80 % of the device memory, and of the container's or machine's "
        "memory minus the process",
    )
    idempotency_keep_s: Annotated[float, WORKER] = Field(
        600.0, ge=0, description="minimum time that an idempotency key is remembered"
    )
    idempotency_keep_requests: Annotated[int, WORKER] = Field(
        64, ge=0, description="minimum number of idempotency keys remembered per stream"
    )
    feed_events: Annotated[int, WORKER] = Field(
        4000,
        ge=1,
        description="event states retained per partition (approximate), for /v1/events, webhooks "
        "and /v1/changes",
    )

    max_event_streams: Annotated[int, API] = Field(
        100, ge=0, description="maximum /v1/events connections per API process"
    )
    max_live_streams: Annotated[int, API] = Field(
        100, ge=0, description="maximum live-observation connections per API process"
    )

    trace: Annotated[bool, API | WORKER] = Field(
        False, description="export traces of requests whose traceparent is sampled"
    )
    trace_share: Annotated[float, API | WORKER] = Field(
        0.0, ge=0, le=1, description="fraction of all other requests to trace"
    )

    webhooks_file: Annotated[Path | None, WEBHOOKS] = Field(
        None, description="TOML file of webhooks; default: no webhooks"
    )
    webhook_hosts: Annotated[str, WEBHOOKS] = Field(
        "",
        description="comma-separated allowlist of hosts that webhooks may call: see docs/events.md",
    )

    @field_validator("key_rate")
    @classmethod
    def _is_a_rate(cls, rate: str) -> str:
        parse_rate(rate)
        return rate

    @model_validator(mode="after")
    def _say_one_thing(self) -> Settings:
        if self.require_keys and self.open_access:
            raise ValueError("require_keys and open_access exclude each other")
        return self

    @model_validator(mode="after")
    def _outlive_a_takeover(self) -> Settings:
        """Requests must outlast the lease of a worker that dies, and the loading after it."""
        if self.request_deadline_s * 1000 <= 2 * self.lease_ttl_ms:
            raise ValueError(
                f"request_deadline_s is {self.request_deadline_s:g}; with lease_ttl_ms "
                f"{self.lease_ttl_ms} it must be more than {self.lease_ttl_ms / 500:g}"
            )
        return self


def names_for(process: Process) -> set[str]:
    """Names of the settings that a process has."""
    return {
        name
        for name, field in Settings.model_fields.items()
        if any(isinstance(mark, Process) and process in mark for mark in field.metadata)
    }


def read_toml(path: Path, content: str) -> dict[str, Any]:
    """Read a file that a setting names; raises StartupError. content: named in the error."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise StartupError(f"cannot read {content}: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path}: invalid TOML: {error}") from None
