"""`moca keys`: create, list and revoke API keys, directly in the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from moca_client.console import table
from service import api_keys
from service.commands.common import argument, fail, option
from service.commands.connection import print_table
from service.commands.options import store_errors, with_settings
from service.settings import Settings

if TYPE_CHECKING:
    from service.store.api_keys import Keyring

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and revoke API keys, in --redis-url or the embedded store of --data-dir.",
)
STORE = {"redis_url", "redis_password_file", "data_dir"}
Name = Annotated[str, argument("Name of the key's holder.")]


@app.command()
@with_settings(STORE)
def create(
    settings: Settings,
    name: Name,
    scope: Annotated[
        list[str],
        option(
            "Scope of the key; may be repeated: "
            + "; ".join(f"{name}: {what}" for name, what in api_keys.SCOPES.items())
            + "."
        ),
    ],
    rate: Annotated[
        str,
        option(
            "Rate limit, such as 100/second or 5000/minute; none: no limit.",
            default="the service's key_rate",
        ),
    ] = "",
    expires: Annotated[
        str, option("Expiry: duration (90d, 12h) or date (2030-01-31).", default="never")
    ] = "",
) -> None:
    """Create a key and print it once. From then on every call needs a key."""
    with _keyring(settings, make=True) as ring:
        until_ms = api_keys.parse_expiry(expires, time.time_ns() // 1_000_000) if expires else 0
        key, token = api_keys.create(name, scope, rate, until_ms)
        first = not ring.any()
        ring.add(key)
    typer.echo(token)
    note = (
        "save this key: it is not shown again, and only its hash is stored. A running service "
        "accepts it within its --key-cache-s, by default 5 s"
    )
    if first:
        note += (
            ". This is the first key: a service that accepted unauthenticated requests from "
            "this machine now requires a key"
        )
    typer.secho(note, err=True, dim=True)


@app.command("list")
@with_settings(STORE)
def list_keys(settings: Settings) -> None:
    """List all keys, including revoked and expired ones."""
    with _keyring(settings) as ring:
        keys = ring.all()
    if not keys:
        typer.secho("no keys", err=True, dim=True)
        return
    texts = ("state", "scopes", "rate", "created", "expires", "last used")
    made = table("name", "id", *texts, words=texts)
    now_ms = time.time() * 1000
    for key, used in keys:
        state = key.state(now_ms)
        rate = key.rate or "default"
        times = (
            datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") if ms else "never"
            for ms in (key.created_ms, key.expires_ms, used * 1000)
        )
        made.add_row(key.name, key.id, state, " ".join(key.scopes), rate, *times)
    print_table(made)


@app.command()
@with_settings(STORE)
def revoke(settings: Settings, name: Name) -> None:
    """Revoke a key; every API process rejects it within its --key-cache-s."""
    with _keyring(settings) as ring:
        for key in ring.revoke(name):
            typer.echo(f"revoked {key.name} ({key.id})")


@contextlib.contextmanager
def _keyring(settings: Settings, make: bool = False) -> Iterator[Keyring]:
    """Open the store; report errors in one line."""
    from service.runtime.embedded import reach
    from service.store.api_keys import Keyring

    try:
        with store_errors(), reach(settings, make) as client:
            yield Keyring(client)
    except ValueError as error:
        fail(str(error))
