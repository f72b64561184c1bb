"""Settings as command line options, each with its `MOCA_*` variable and its line of `--help`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.settings import Settings
from service.store.address import with_password

STORE = {"redis_url", "redis_password_file", "partitions"}
API = STORE | {
    "models_dir",
    "host",
    "port",
    "default_model",
    "request_deadline_s",
    "max_pending",
    "max_waiting",
    "max_wait_s",
    "max_connections",
    "max_body_bytes",
    "max_observations",
    "max_dimension",
    "max_hypotheses",
    "max_history",
    "max_snapshot_bytes",
    "prometheus_rules",
    "max_result_streams",
    "memory_shed_fraction",
    "require_keys",
    "open_access",
    "host_names",
    "metrics_key_required",
    "key_rate",
    "key_cache_s",
    "cors_origins",
    "no_console",
    "access_log",
    "keep_alive_s",
    "max_event_streams",
    "max_live_streams",
    "trace",
    "trace_share",
    "log_level",
}
WORKER = STORE | {
    "models_dir",
    "worker_hang_s",
    "device",
    "no_kernels",
    "plugins",
    "metrics_port",
    "lease_ttl_ms",
    "request_deadline_s",
    "max_dimension",
    "checkpoint_every",
    "resident_bytes",
    "max_replay",
    "max_hypotheses",
    "max_history",
    "idempotency_keep_s",
    "idempotency_keep_requests",
    "feed_events",
    "trace",
    "trace_share",
    "log_level",
}
WEBHOOKS = STORE | {
    "data_dir",
    "metrics_port",
    "lease_ttl_ms",
    "webhooks_file",
    "webhook_hosts",
    "log_level",
}
# Several workers cannot share a port: their metrics are on the API's page.
SERVE = set(Settings.model_fields) - {"metrics_port"}
SHORT = {"open_access": ("--open",)}
LIMITS = ("max_", "memory_", "checkpoint_", "resident_", "idempotency_", "lease_", "keep_", "feed_")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"MOCA_{name.upper()}"


def flag(name: str) -> str:
    """Return the option of a setting."""
    return "--" + name.replace("_", "-")


def input_file(help: str) -> Any:
    """Return the argument for a file that a command reads."""
    return typer.Argument(exists=True, dir_okay=False, readable=True, help=help, show_default=False)


def fail(message: str, status: int = 2) -> NoReturn:
    """Report on standard error why the command cannot run, and exit."""
    typer.secho(f"moca: {message}", err=True, fg="red")
    raise typer.Exit(status)


def with_settings(
    names: Collection[str],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each named setting; it receives `settings` instead.

    Order of precedence: option, environment variable, default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        options = [_option(name) for name in Settings.model_fields if name in names]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {option.name: given.pop(option.name) for option in options}
            command(settings=read_settings(chosen), **given)

        kept = [each for each in own.values() if each.name != "settings"]
        parameters = sorted([*kept, *options], key=lambda each: each.kind)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def read_settings(chosen: dict[str, Any]) -> Settings:
    """Settings from options, and from the environment where an option is not given."""
    try:
        found = Settings(**{name: value for name, value in chosen.items() if value is not None})
    except ValidationError as error:
        fail("; ".join(_wrong(each) for each in error.errors()))
    return _with_password(found)


def _with_password(settings: Settings) -> Settings:
    """Put the password of a file into the URL; processes that this one starts find it there."""
    file, url = settings.redis_password_file, settings.redis_url
    if file is None:
        return settings
    try:
        if url is None:
            raise ValueError("--redis-password-file requires --redis-url")
        password = file.read_text().strip()
        if not password:
            raise ValueError("the file is empty")
        change = {"redis_url": with_password(url, password), "redis_password_file": None}
        return settings.model_copy(update=change)
    except (OSError, ValueError) as error:
        fail(f"--redis-password-file {file}: {error}")


def _wrong(error: ErrorDetails) -> str:
    if not error["loc"]:  # of settings that do not go together
        return error["msg"].removeprefix("Value error, ")
    name = str(error["loc"][0]).lower().removeprefix("moca_")
    return f"{flag(name)} ({variable(name)}): {error['msg']}, got {error['input']!r}"


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    annotation: Any = field.annotation
    option = typer.Option(
        flag(name),
        *SHORT.get(name, ()),
        help=f"{field.description}.",
        envvar=variable(name),
        show_default=False if field.default in (None, "") else str(field.default),
        rich_help_panel="Limits and tuning" if name.startswith(LIMITS) else "Options",
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation | None, option],
    )
