"""`moca mcp`: the tools of assistants, on standard input and output."""

from __future__ import annotations

from service.commands.connection import DEFAULT_URL, ApiKey, Url
from service.commands.options import fail


def mcp(url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Serve an assistant the tools that read a running service (Model Context Protocol, stdio)."""
    from moca_client import AsyncClient

    try:
        from service.assistant import server
    except ModuleNotFoundError:
        fail("this needs mcp, which is not installed: pip install 'moca-service[mcp]'")
    server(lambda _: AsyncClient(url, api_key=api_key, retry_for_s=5)).run("stdio")
