"""The console's page and its files. They hold no data: that comes by the REST interface."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from service.api.http import header_text
from service.console.assets import PAGE, Asset, asset
from service.problems import NotFound

# No script but the service's own files. Styles: the plotting code writes them into its elements.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SAFETY = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def show_page(request: Request) -> Response:
    """Return the console's page."""
    return await _file(request, PAGE)


async def show_file(request: Request) -> Response:
    """Return one of the console's files."""
    return await _file(request, request.scope["path_params"]["name"])


ROUTES = (("/", show_page), ("/console/{name}", show_file))


async def _file(request: Request, name: str) -> Response:
    file = await asyncio.to_thread(asset, name)
    if file is None:
        raise NotFound(f"no resource at {request.scope['path']}")
    packs = _takes_gzip(request)
    etag = f'"{file.etag}-gzip"' if packs else f'"{file.etag}"'
    headers = {**SAFETY, "Cache-Control": file.cache, "ETag": etag, "Vary": "Accept-Encoding"}
    if _known(request, file):
        return Response(status_code=304, headers=headers)
    if packs:
        headers["Content-Encoding"] = "gzip"
    content = file.packed if packs else file.content
    return Response(content, headers={**headers, "Content-Type": file.kind})


def _takes_gzip(request: Request) -> bool:
    accepted = header_text(request.scope, b"accept-encoding").lower()
    for offer in accepted.split(","):
        coding, _, weight = offer.strip().partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def _known(request: Request, file: Asset) -> bool:
    """Whether the client has this content already, packed or not."""
    etags = header_text(request.scope, b"if-none-match")
    return etags.strip() == "*" or file.etag in etags
