"""Every bound of the service, with its default. Only the command line reads the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.keys import parse_rate


class Settings(BaseSettings):
    """Settings of one process; each is also an environment variable `MOCA_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="MOCA_", frozen=True, extra="ignore")

    redis_url: str | None = Field(None, description="Redis >= 7.0 or Valkey; none: embedded")
    redis_password_file: Path | None = Field(
        None, description="file with the password of Redis, instead of one in the URL"
    )
    data_dir: Path = Field(Path("moca-data"), description="folder of the embedded store")
    models_dir: Path = Field(Path("models"), description="folder of model artifacts")
    host: str = Field("127.0.0.1", description="address the API listens on")
    port: int = Field(8000, ge=0, le=65535, description="port the API listens on")
    partitions: int = Field(64, ge=1, le=4096, description="partitions of a new deployment")
    workers: int = Field(1, ge=1, description="worker processes of `moca serve`")
    device: str = Field("cpu", description="torch device of a worker")
    metrics_port: int = Field(0, ge=0, le=65535, description="port of a worker's /metrics; 0: none")
    plugins: str = Field(
        "", description="modules that register kinds of models, between commas; imported by workers"
    )
    default_model: str = Field("averaged", description="model of streams made by observing")

    lease_ttl_ms: int = Field(5000, ge=100, description="time an owner keeps a partition unseen")
    worker_hang_s: float = Field(
        60.0,
        ge=1,
        description="a worker that gets nowhere for so long ends, to be started again; at least"
        " the longest step of a batch",
    )
    request_deadline_s: float = Field(30.0, gt=0, description="longest wait for an outcome")
    max_pending: int = Field(10_000, ge=1, description="observations waiting in one partition")
    max_waiting: int = Field(20_000, ge=1, description="requests waiting in one API process")
    max_wait_s: float = Field(
        1.0,
        ge=0,
        description="time within which 99 % of accepted requests are to be answered under"
        " overload: while the estimated wait is over 40 % of it, new ones get 429; 0: never",
    )
    max_connections: int = Field(
        10_000,
        ge=16,
        description="connections of one API process, of which idle ones are closed first; at most"
        " the limit on open files, less 256",
    )
    max_entry_bytes: int = Field(262_144, ge=4096, description="size of one log entry")
    max_body_bytes: int = Field(8 << 20, ge=1024, description="size of one request body")
    max_observations: int = Field(10_000, ge=1, description="observations in one request")
    max_dimension: int = Field(256, ge=1, description="length of x or y")
    max_hypotheses: int = Field(2000, ge=2, description="largest max_hypotheses of a stream")
    max_history: int = Field(100_000, ge=0, description="largest history of a stream")
    max_points: int = Field(1000, ge=1, description="inputs in one predictions call")
    max_samples: int = Field(1000, ge=1, description="samples in one predictions call")
    max_horizon: int = Field(100, ge=1, description="labels to come in one predictions call")
    horizon_paths: int = Field(
        256, ge=2, description="paths drawn for a horizon of a model that feeds labels back"
    )
    max_pinned: int = Field(100, ge=0, description="streams with metrics of their own")
    max_replay: int = Field(
        5000, ge=1, description="observations rerun at once, by a verdict, what-if or move"
    )
    max_read_work: int = Field(
        2_000_000,
        ge=1,
        description="evaluations in one predictions call, about 1 us each: inputs x hypotheses x "
        "outputs x quantiles",
    )
    max_step_work: int = Field(
        500_000,
        ge=1000,
        description="evaluations for the quantiles of one observation's answer, about 0.4 us each: "
        "hypotheses x outputs x 3, of `averaged` x 9",
    )
    max_model_bytes: int = Field(
        1 << 30, ge=1024, description="size of an artifact's tensors; a larger one is not loaded"
    )
    max_snapshot_bytes: int = Field(64 << 20, ge=1024, description="size of an imported snapshot")
    memory_shed_fraction: float = Field(
        0.85, gt=0, le=1, description="share of Redis maxmemory above which load is shed"
    )

    require_keys: bool = Field(False, description="every call needs a key, even before one exists")
    open_access: bool = Field(
        False, description="everyone who reaches the service may call everything without a key"
    )
    host_names: str = Field(
        "",
        description="names, between commas, that the service answers to without a key, beside"
        " localhost, addresses and names without a dot; *: any, as with --open where none is said",
    )
    metrics_key_required: bool = Field(
        False, description="/metrics, too, needs a key, with the scope read"
    )
    key_rate: str = Field(
        "none", description="rate of keys without one of their own, such as 100/second"
    )
    key_cache_s: float = Field(
        5.0, gt=0, le=3600, description="longest time until a new or revoked key is noticed"
    )
    cors_origins: str = Field(
        "", description="origins whose pages may call, between commas; *: all, none: no page"
    )
    no_console: bool = Field(False, description="do not serve the console, a web page, at /")
    access_log: str = Field("off", description="off, stderr, or a file: one JSON line per request")
    body_timeout_s: float = Field(30.0, gt=0, description="longest wait for a request's body")
    head_timeout_s: float = Field(10.0, gt=0, description="longest wait for a request's head")
    keep_alive_s: int = Field(
        75,
        ge=1,
        description="time an idle connection stays open; longer than proxies before the API keep"
        " theirs, commonly 60 s",
    )
    max_head_bytes: int = Field(
        32_768, ge=1024, description="size of a request's URL and headers; the URL: half of it"
    )
    max_headers: int = Field(100, ge=8, description="headers of one request")

    read_entries: int = Field(64, ge=1, description="log entries read per partition at a time")
    checkpoint_every: int = Field(64, ge=1, description="observations between checkpoints")
    resident_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="streams kept in a worker's memory, of device and host together; none: 80 % of"
        " the device, and of the container or machine less the process",
    )
    idempotency_keep_s: float = Field(600.0, ge=0, description="time a key is remembered at least")
    idempotency_keep_requests: int = Field(64, ge=0, description="keys remembered at least")
    feed_events: int = Field(
        2000, ge=1, description="changepoint events kept for readers, per partition (about)"
    )
    recent_window: int = Field(5, ge=1, description="run lengths that count as a recent change")

    max_event_streams: int = Field(
        100, ge=0, description="connections to /v1/events of one API process"
    )
    event_buffer: int = Field(
        4096, ge=1, description="newest events kept in an API process for its connections"
    )
    events_heartbeat_s: float = Field(
        15.0, gt=0, description="time between comments on a quiet connection that has no end"
    )
    events_send_timeout_s: float = Field(
        30.0, gt=0, description="time after which a consumer that takes nothing is disconnected"
    )
    max_live_streams: int = Field(
        100, ge=0, description="connections of one API process that follow observations"
    )
    live_interval_s: float = Field(
        0.2,
        ge=0.01,
        description="time between looks at the streams whose observations are followed",
    )

    trace: bool = Field(False, description="send traces of requests whose traceparent is sampled")
    trace_share: float = Field(
        0.0, ge=0, le=1, description="share of the other requests that have a trace, too"
    )

    webhooks_file: Path | None = Field(None, description="TOML file of webhooks; none: no webhooks")
    webhook_hosts: str = Field(
        "", description="hosts that webhooks may call, between commas: see docs/events.md"
    )
    webhook_attempts: int = Field(10, ge=1, description="attempts before a delivery is given up")
    webhook_timeout_s: float = Field(10.0, gt=0, description="longest time of one attempt")
    webhook_backoff_s: float = Field(
        1.0, gt=0, description="pause after the first failed attempt; it doubles"
    )
    webhook_backoff_max_s: float = Field(300.0, gt=0, description="longest pause between attempts")
    webhook_in_flight: int = Field(
        8, ge=1, description="deliveries of one webhook at a time; those of a stream go in order"
    )
    webhook_dead: int = Field(1000, ge=1, description="deliveries given up that are kept")

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
