"""A real API process with a real store beside it, and keys made as the command line makes them."""

from __future__ import annotations

import subprocess
import sys

from service import api_keys
from service.store.api_keys import Keyring
from service.store.connection import connect


def make_key(redis_url: str, name: str, *scopes: str, **extra) -> str:
    key, token = api_keys.create(name, scopes, **extra)
    with connect(redis_url) as client:
        Keyring(client).add(key)
    return token


def moca(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run the command line to its end."""
    command = [sys.executable, "-m", "service.commands.main", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
