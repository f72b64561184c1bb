"""Settings as command line options, each with its `MOCA_*` variable and its line of `--help`."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from model_core import wording
from model_core.wording import did_you_mean
from service.commands.common import HELP_ALL, fail, with_parameters
from service.problems import StartupError
from service.runtime.process import EXIT_REFUSED
from service.settings import Settings

PREFIX = str(Settings.model_config["env_prefix"])
MISSPELT = 0.85  # similarity of a variable to that of a setting; MOCA_ is alike in all
# Several workers cannot share a port: their metrics are on the API's page.
SERVE = set(Settings.model_fields) - {"metrics_port"}
SHORT = {"open_access": ("--open",)}
# Those that `--help` shows; `--help-all` has all.
FIRST = {
    "data_dir",
    "default_model",
    "false_alarms_per_day",
    "host",
    "models_dir",
    "open_access",
    "port",
    "redis_url",
    "require_keys",
    "webhooks_file",
    "workers",
}
LIMITS = ("max_", "memory_", "checkpoint_", "resident_", "idempotency_", "lease_", "keep_", "feed_")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """Return the option of a setting."""
    return "--" + name.replace("_", "-")


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Exit with one line about a store, or a configuration, that cannot be used."""
    import redis  # takes longer than `--help`

    try:
        yield
    except StartupError as error:
        fail(str(error), EXIT_REFUSED)
    except redis.RedisError as error:
        fail(f"the store cannot be reached: {error}", 1)


def with_settings(
    names: Collection[str],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each named setting; it receives `settings` instead.

    Order of precedence: option, environment variable, default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        options = [_option(name) for name in Settings.model_fields if name in names]

        def run(**values: Any) -> None:
            del values[HELP_ALL.name]
            chosen = {option.name: values.pop(option.name) for option in options}
            command(settings=read_settings(chosen), **values)

        others = [parameter for parameter in own.values() if parameter.name != "settings"]
        parameters = sorted([*others, *options, HELP_ALL], key=lambda parameter: parameter.kind)
        return with_parameters(run, command, parameters)

    return decorate


def read_settings(chosen: dict[str, Any]) -> Settings:
    """Settings from options, and from the environment where an option is not given.

    A variable that is nearly one of them is refused: ignored, it might leave a service open.
    """
    variables = list(map(variable, Settings.model_fields))
    for name in sorted(os.environ.keys() - set(variables)):
        if name.startswith(PREFIX) and (meant := did_you_mean(name, variables, like=MISSPELT)):
            fail(f"{name}: no such variable{meant}")
    try:
        settings = Settings(**{name: value for name, value in chosen.items() if value is not None})
    except ValidationError as error:
        fail("; ".join(_message(details) for details in error.errors()))
    file = settings.redis_password_file
    if file is None:
        return settings
    # Into the URL: processes that this one starts find the password there.
    from service.store.connection import with_password  # imports redis: longer than `--help` takes

    try:
        if settings.redis_url is None:
            raise ValueError("--redis-password-file requires --redis-url")
        password = file.read_text().strip()
        if not password:
            raise ValueError("the file is empty")
        change = {
            "redis_url": with_password(settings.redis_url, password),
            "redis_password_file": None,
        }
        return settings.model_copy(update=change)
    except (OSError, ValueError) as error:
        fail(f"--redis-password-file {file}: {error}")


def _message(error: ErrorDetails) -> str:
    if not error["loc"]:  # of settings that do not go together
        return error["msg"].removeprefix("Value error, ")
    name = str(error["loc"][0]).lower().removeprefix("moca_")
    return f"{flag(name)} ({variable(name)}): {wording.described(error)}"


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
        hidden=name not in FIRST,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation | None, option],
    )
